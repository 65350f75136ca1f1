"""Settings that a demonstration borrows: what it may have changed goes back, whatever the engine answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slotdeck.console.client.admin import AdminError
from slotdeck.console.demo.settings_lease import SettingsLease


class Engine:
    """An admin API with some settings. While ``silent``, it makes a change but its answer is lost."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.values: dict[str, Any] = {"mode": "continuous", "slots": 4, "budget": 64}
        self.silent = False
        self.refusals = 0
        self.changes: list[dict[str, Any]] = []

    def call(self, method: str, path: str, body: Any = None) -> Any:
        if method == "GET":
            rows = [{"name": name, "value": value, "live": True} for name, value in self.values.items()]
            return {"settings": [*rows, {"name": "port", "value": 8000, "live": False}]}
        if self.refusals:
            self.refusals -= 1
            raise AdminError("the pool is in use")
        self.changes.append(body["changes"])
        self.values |= body["changes"]
        if self.silent:
            raise AdminError("the engine has said nothing for 5 s")
        return {"revision": 1}


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return Engine(tmp_path / "none.sock")


def leased(engine: Engine) -> SettingsLease:
    return SettingsLease(engine)  # type: ignore[arg-type]


def test_a_change_whose_answer_was_lost_is_given_back(engine: Engine) -> None:
    lease = leased(engine)
    engine.silent = True
    with pytest.raises(AdminError):
        lease.change({"mode": "serial"})
    assert engine.values["mode"] == "serial"
    engine.silent = False
    lease.give_back()
    assert engine.values == {"mode": "continuous", "slots": 4, "budget": 64}


def test_a_row_undoes_what_only_the_row_before_changed(engine: Engine) -> None:
    lease = leased(engine)
    lease.change({"mode": "serial", "slots": 1})
    lease.change({"mode": "static"})
    assert engine.values == {"mode": "static", "slots": 4, "budget": 64}
    lease.give_back()
    assert engine.changes[-1] == {"mode": "continuous", "slots": 4}
    assert "port" not in lease.original


def test_a_refusal_is_tried_again_when_giving_back(engine: Engine) -> None:
    lease = leased(engine)
    lease.change({"slots": 1})
    engine.refusals = 2
    lease.give_back()
    assert engine.values["slots"] == 4


def test_nothing_is_sent_for_a_lease_that_changed_nothing(engine: Engine) -> None:
    leased(engine).give_back()
    assert engine.changes == []
