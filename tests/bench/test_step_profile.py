"""`bench --profile`: the parts add up to the step, and the flame graph is a picture of them."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from slotdeck.console.bench.flame_graph import StackSamples as Recorded
from slotdeck.console.bench.flame_graph import draw, measured_tree, sample_stacks, sampled_tree, svg
from slotdeck.console.bench.step_profile import profile_table, shares
from slotdeck.engine.telemetry.step_profile import Profile, StepProfiler

KERNELS = {"embedding": 0.1, "norms": 0.3, "qkv": 1, "attention": 2, "output": 0.5, "gate_up": 2, "down": 1, "head": 1}
LOOP = {"plan": 0.1, "lay_out": 0.2, "sampling": 0.3, "commit": 0.2, "hand_over": 0.1}
NATIVE = Profile(
    steps=100, tokens=400, wall=9.5, parts={**KERNELS, **LOOP, "forward": 8.2}, server_cpu=0.1, process_cpu=17
)
TORCH = Profile(steps=10, tokens=10, wall=2.0, parts={**LOOP, "forward": 1.0}, server_cpu=0.0)


@pytest.mark.parametrize("profile", [NATIVE, TORCH])
def test_what_is_no_part_of_another_adds_up_to_the_step(profile: Profile) -> None:
    lines = shares(profile)
    assert sum(line.seconds for line in lines if not line.inner) == pytest.approx(profile.wall)
    assert lines[-1].name == "rest"
    by_name = {line.name: line.seconds for line in lines}
    outer = "Python"
    inner = [line.seconds for line in lines[[line.name for line in lines].index(outer) + 1 : -1]]
    assert sum(inner) == pytest.approx(by_name[outer])


def test_the_table_has_a_column_for_each_stage_that_computed_something() -> None:
    text = profile_table([("1 user", NATIVE), ("2 users", Profile()), ("5 users", NATIVE)])
    assert "1 user" in text
    assert "2 users" not in text
    attention = next(line for line in text.splitlines() if line.startswith(" attention"))
    assert attention.split() == ["attention", "20.00", "21.1%", "20.00", "21.1%"]
    assert "250 µs/token" in text
    assert profile_table([]) == "no step was computed"


def test_a_profile_is_the_difference_of_two_readings() -> None:
    times = StepProfiler()
    times.add(1.0, 3, {"plan": 0.25})
    before = times.profile({})
    times.add(2.0, 4, {"plan": 0.5, "forward": 1.0})
    spent = times.profile({}).since(before)
    assert (spent.steps, spent.tokens, spent.wall) == (1, 4, 2.0)
    assert spent.parts == {"plan": 0.5, "forward": 1.0}
    assert spent.server_cpu >= 0


def test_stacks_end_in_what_the_kernels_measured() -> None:
    lines = [
        "thread (1);run (engine/loop.py);Kernels.step (engine/kernels/library.py) 60",
        "thread (2);run (uvicorn/server.py);send (asyncio/x.py) 30",
        "thread (1);run (engine/loop.py) 10",
        "thread (2);run (uvicorn/server.py);EpollSelector.select (selectors.py) 50",
        "not a stack",
    ]
    root = sampled_tree(lines, NATIVE)
    assert root.weight == pytest.approx(100)
    step = (
        root.children["thread (1)"]
        .children["run (engine/loop.py)"]
        .children["Kernels.step (engine/kernels/library.py)"]
    )
    assert step.children["attention"].weight == pytest.approx(60 * 2 / 7.9)
    assert step.children["matrix products"].children["down"].kind == "kernels"
    assert root.children["thread (2)"].kind == "server"


def test_the_picture_is_svg_whatever_the_names() -> None:
    root = sampled_tree(["<module> (a&b.py);<lambda> (x.py) 3"], NATIVE)
    picture = ElementTree.fromstring(svg(root, "a < b", "looks"))
    titles = [title.text for title in picture.iter("{http://www.w3.org/2000/svg}title")]
    assert "<lambda> (x.py): 3.00 looks, 100.0%" in titles
    ElementTree.fromstring(svg(sampled_tree([], NATIVE), "empty", "looks"))


def test_without_stacks_the_measured_parts_are_drawn_and_the_reason_is_said() -> None:
    said: list[str] = []
    picture = draw(Recorded(problem="no py-spy"), NATIVE, "model", said.append)
    assert "matrix products" in picture
    assert said == ["no py-spy; the flame graph only shows the measured parts"]
    assert measured_tree(NATIVE).weight == pytest.approx(NATIVE.wall)


def test_no_py_spy_is_a_reason_not_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slotdeck.console.bench.flame_graph.py_spy", lambda: None)
    with sample_stacks(1) as recorded:
        pass
    assert recorded.problem is not None
    assert "slotdeck[profile]" in recorded.problem
