"""The library is built once, atomically, and whatever goes wrong leaves the torch path and one clear line."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from slotdeck.engine.kernels import build
from slotdeck.engine.kernels.build import BuildError, library_path
from slotdeck.engine.kernels.library import Kernels, instruction_sets
from slotdeck.engine.model.errors import ModelError
from slotdeck.engine.model.load import load_model
from slotdeck.engine.model.weight_choice import choose_weights
from tests.kernels.library import PATH
from tests.support.tiny_models import save_tiny_llama

CPU = torch.device("cpu")
needs_compiler = pytest.mark.skipif(build.compiler() is None, reason="no C++ compiler")


@needs_compiler
def test_built_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = library_path()
    monkeypatch.setenv("SLOTDECK_CACHE", str(tmp_path))
    (tmp_path / "kernels").mkdir()
    kept = tmp_path / "kernels" / usual.name
    shutil.copy(usual, kept)

    def never(*_: object) -> Path:
        raise AssertionError("compiled again")

    monkeypatch.setattr(build, "_compile", never)
    assert library_path() == kept
    with pytest.raises(AssertionError):
        library_path(("-O1",))  # other flags, another library
    assert [path.name for path in (tmp_path / "kernels").iterdir()] == [usual.name]


@needs_compiler
def test_a_compiler_that_fails_leaves_nothing_and_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "broken-g++"
    broken.write_text("#!/bin/sh\necho 'forward.cpp:1: error: no such thing' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("SLOTDECK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", str(broken))
    with pytest.raises(BuildError, match=r"did not compile with .*no such thing"):
        library_path()
    assert list((tmp_path / "cache" / "kernels").iterdir()) == []


def test_without_a_compiler_torch_computes_and_one_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_tiny_llama(tmp_path / "model")
    monkeypatch.setenv("SLOTDECK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", "no-such-compiler")
    for asked in ("auto", "int8", "int4"):
        model = load_model(str(tmp_path / "model"), weights=asked, device="cpu")
        assert model.weights in ("fp32", "bf16")
        assert model.kernels == "torch"
        assert "no C++ compiler was found: install g++" in model.notes[0]
        assert "\n" not in model.notes[0]


@needs_compiler
def test_a_damaged_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = library_path()
    monkeypatch.setenv("SLOTDECK_CACHE", str(tmp_path))
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / usual.name).write_bytes(b"not a library")
    with pytest.raises(BuildError, match="delete that file"):
        Kernels()


@needs_compiler
def test_an_instruction_set_the_cpu_lacks_is_refused() -> None:
    assert instruction_sets()[-1] == "portable"
    with pytest.raises(BuildError, match=r"has no sse9; it has .*portable"):
        Kernels(1, "sse9")


def test_weights_are_chosen_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("fp32", "bf16"):
        choice = choose_weights(name, CPU)
        assert (choice.weights, choice.kernels) == (name, None)
        assert "as asked" in choice.reason
    with pytest.raises(ModelError, match="fp8"):
        choose_weights("fp8", CPU)
    with pytest.raises(ModelError, match="CPU only"):
        choose_weights("int8", torch.device("cuda"))
    with pytest.raises(ModelError, match="int4 weights are computed on the CPU only"):
        choose_weights("int4", torch.device("cuda"))


@needs_compiler
def test_auto_takes_the_kernels_where_torch_has_nothing_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slotdeck.engine.model.weight_choice.cpu_has_amx", lambda: False)
    choice = choose_weights("auto", CPU)
    if instruction_sets() == ["portable"]:
        assert choice.weights in ("fp32", "bf16")
    else:
        assert choice.weights == "int8"
        assert choice.kernels is not None
        assert choice.kernels.instruction_set in choice.reason
        choice.kernels.close()
        choice = choose_weights("auto", CPU, in_four_bits=True)
        assert choice.kernels is not None
        assert choice.weights == ("int4" if choice.kernels.instruction_set == "avx2" else "int8")
        choice.kernels.close()
    monkeypatch.setattr("slotdeck.engine.model.weight_choice.cpu_has_amx", lambda: True)
    choice = choose_weights("auto", CPU)
    assert choice.weights in ("fp32", "bf16")
    assert choice.kernels is None


def _sanitizer_runtime() -> str | None:
    compiler = build.compiler()
    if compiler is None or sys.platform != "linux":
        return None
    found = subprocess.run([compiler, "-print-file-name=libasan.so"], capture_output=True, text=True, check=False)
    return found.stdout.strip() if os.path.isabs(found.stdout.strip()) else None


@pytest.mark.timeout(900)
@pytest.mark.skipif(PATH in os.environ or _sanitizer_runtime() is None, reason="no sanitizers, or already under them")
def test_address_and_undefined_behaviour_sanitizers_find_nothing() -> None:
    """The kernels' own tests again, in a process whose library watches every access and every shift."""
    flags = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-g", "-O1")
    environment = os.environ | {
        PATH: str(library_path(flags)),
        "LD_PRELOAD": str(_sanitizer_runtime()),
        "ASAN_OPTIONS": "detect_leaks=0",  # the interpreter's own
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }
    tests = [str(Path(__file__).with_name(name)) for name in ("test_products.py", "test_steps.py")]
    command = [sys.executable, "-P", "-m", "pytest", "-x", "-q", "-s", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
