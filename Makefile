# make run: set everything up and open the console.    make test: set everything up and run all tests.
VENV := .venv
PYTHON ?= python3
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check
ARGS ?=

.PHONY: run test quick check mutants setup setup-test format screenshots clean

run: setup
	@$(VENV)/bin/slotdeck $(ARGS)

test: setup-test
	@$(VENV)/bin/slotdeck model fetch
	@$(VENV)/bin/python -m pytest -n 2 --dist loadgroup $(ARGS)

quick: setup-test
	@$(VENV)/bin/python -m pytest -n 2 --dist loadgroup --quick $(ARGS)

check: setup-test
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

# make mutants ROOM=engine/core: small faults, one at a time, that the tests of the folder must notice. Takes long.
mutants: setup-test
	@PYTHONPATH=.src:. nice $(VENV)/bin/python -m tests.mutation $(ROOM) $(ARGS)

format: setup-test
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

screenshots: setup-test
	$(PIP) install --quiet -c .ci/constraints.txt -e '.[screenshots]'
	$(VENV)/bin/python -m tests.screenshots $(ARGS)
	$(VENV)/bin/python -m tests.demo.pictures $(ARGS)

setup: $(VENV)/.installed
setup-test: $(VENV)/.installed-test

$(VENV)/.installed: pyproject.toml .ci/constraints.txt
	@test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing Slotdeck into $(VENV) (torch is the large part; first time only) …"
	@$(PIP) install --quiet -c .ci/constraints.txt -e .
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	@$(PIP) install --quiet -c .ci/constraints.txt -e '.[test]'
	@touch $@

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
