"""Editing settings: steps, numbers, confirmation, refusal, undo, and the preview of a change."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotdeck.console.drawing.cells import plain
from slotdeck.console.sections.settings_panel import settings_panel
from slotdeck.console.session.status_line import StatusLine
from slotdeck.console.settings.change_preview import preview_change, preview_changes
from slotdeck.console.settings.changes import SettingChange, setting_changes
from slotdeck.console.settings.editor import SETTLED_AFTER, SettingsEditor
from slotdeck.console.settings.values import LIVE_SETTINGS, Value, bounds, choices, shown, stepped
from slotdeck.console.sources.base import Answer
from slotdeck.engine.telemetry.frame import Bounds, Frame
from tests.support import frames
from tests.support.console_app import confirmed


class Editor(SettingsEditor):
    """Remembers what it said last."""

    def __init__(self) -> None:
        super().__init__(self._remember)
        self.message = ""
        self.failed = False

    def _remember(self, text: str, *, failed: bool = False) -> None:
        self.message, self.failed = text, failed


def edited(name: str, *digits: int) -> Editor:
    """An editor with a setting in which these digits were typed."""
    editor = Editor()
    editor.on_frame(frames.steady())
    editor.select(name, frames.steady().limits)
    for digit in digits:
        editor.type_digit(digit)
    return editor


@given(
    st.sampled_from([name for name in LIVE_SETTINGS if not choices(name)]),
    st.integers(0, 1 << 20),
    st.sampled_from([1, -1]),
)
def test_steps_stay_in_bounds_and_go_the_right_way(name: str, value: int, direction: int) -> None:
    low, high = bounds(name).least, bounds(name).most
    value = max(low, min(high, value))
    after = stepped(name, value, direction)
    assert isinstance(after, int)
    assert low <= after <= high
    assert after == value or (after > value) == (direction > 0)


def test_choices_and_switches_wrap_around() -> None:
    assert stepped("mode", "serial", 1) == "static"
    assert stepped("mode", "continuous", 1) == "serial"
    assert stepped("mode", "serial", -1) == "continuous"
    assert stepped("prefix_cache", True, 1) is False
    assert stepped("prefix_cache", False, -1) is True
    assert (shown("prefix_cache", True), shown("mode", "static"), shown("queue", None)) == ("on", "static", "–")


def test_bytes_and_milliseconds_have_suitable_steps() -> None:
    assert stepped("swap_space", 1 << 30, 1) == (1 << 30) + (512 << 20)
    assert stepped("swap_space", 0, 1) == 64 << 20
    assert shown("swap_space", 1 << 30) == "1 GiB"
    assert stepped("itl_target", 0, 1) == 10
    assert stepped("kv_tokens", 8192, -1) == 7168


def test_a_digit_selects_the_choice_with_that_number() -> None:
    editor = edited("mode", 1)
    assert editor.edit is not None
    assert editor.edit.description == "mode continuous→serial"
    order = editor.apply()
    assert order is not None
    assert order.values == {"mode": "serial"}


def test_budget_doubles_and_context_goes_by_256() -> None:
    assert stepped("budget", 64, 1) == 128
    assert stepped("budget", 100, -1) == 64
    assert stepped("context", 2000, 1) == 2048
    assert stepped("context", 2048, -1) == 1792


def test_a_change_is_pending_until_a_frame_confirms_it() -> None:
    editor = edited("slots", 8)
    order = editor.apply()
    assert order is not None
    assert (order.changes, order.values, order.base) == ((SettingChange("slots", 4, 8),), {"slots": 8}, 3)
    editor.on_answer(Answer(True, revision=4))
    assert editor.pending is not None
    editor.on_frame(frames.steady())
    assert editor.pending is not None
    editor.on_frame(confirmed(frames.steady(), 4, slots=8))
    assert editor.pending is None
    assert editor.message == "slots 4→8 in force"


def test_a_frame_that_confirms_before_the_answer_counts() -> None:
    editor = edited("slots", 8)
    editor.apply()
    editor.on_frame(confirmed(frames.steady(), 4, slots=8))
    assert editor.pending is not None
    editor.on_answer(Answer(True, revision=4))
    assert editor.pending is None


def test_run_02_a_refusal_shows_reason_and_maximum() -> None:
    editor = edited("slots", 9, 9)
    editor.apply()
    editor.on_answer(Answer(False, message="slots: at most 64 fit this pool"))
    assert editor.pending is None
    assert editor.failed
    assert "at most 64" in editor.message


def test_out_of_range_is_refused_before_it_is_sent() -> None:
    editor = edited("slots", 9, 9, 9)
    assert editor.apply() is None
    assert "between 1 and 256" in editor.message
    assert editor.edit is not None


def test_the_range_of_a_setting_is_what_model_and_pool_allow() -> None:
    within = Bounds(least=64, most=8192, why="the model was trained for no more")
    limits = frames.limits_of(bounds={"context": within})
    editor = Editor()
    editor.select("context", limits)
    line = StatusLine(lambda: 0.0)
    assert "64 to 8192 tokens" in line.status(editor, frames.steady()).text
    for digit in (9, 0, 0, 0):
        editor.type_digit(digit)
    assert editor.apply() is None
    assert "between 64 and 8192 tokens: the model was trained for no more" in editor.message
    for _ in range(40):
        editor.step(1)
    assert editor.edit is not None
    assert editor.edit.value == 8192
    assert any("(64 to 8192 tokens)" in plain(row) for row in settings_panel(limits, None, 0, width=120, height=20))


def test_undo_takes_back_one_change_after_another() -> None:
    editor = edited("slots", 8)
    editor.apply()
    editor.on_answer(Answer(True, revision=4))
    editor.on_frame(confirmed(frames.steady(), 4, slots=8))
    editor.select("queue", confirmed(frames.steady(), 4, slots=8).limits)
    editor.type_digit(4)
    editor.apply()
    editor.on_answer(Answer(True, revision=5))
    editor.on_frame(confirmed(frames.steady(), 5, slots=8, queue=4))
    order = editor.undo()
    assert order is not None
    assert (order.values, order.base) == ({"queue": 16}, 5)
    editor.on_answer(Answer(True, revision=6))
    editor.on_frame(confirmed(frames.steady(), 6, slots=8))
    order = editor.undo()
    assert order is not None
    assert (order.values, order.base) == ({"slots": 4}, 6)
    editor.on_answer(Answer(True, revision=7))
    editor.on_frame(confirmed(frames.steady(), 7))
    assert editor.undo() is None
    assert editor.message == "nothing to take back"


def together(**changes: Value) -> tuple[SettingChange, ...]:
    return setting_changes(changes, frames.steady().limits)


def test_several_settings_are_sent_together_and_undone_together() -> None:
    editor = Editor()
    editor.on_frame(frames.steady())
    wanted = together(slots=8, queue=16, kv_tokens=16_384)
    assert wanted == (SettingChange("slots", 4, 8), SettingChange("kv_tokens", 8192, 16_384))
    order = editor.apply_all(wanted)
    assert order is not None
    assert (order.values, order.base) == ({"slots": 8, "kv_tokens": 16_384}, 3)
    assert editor.apply_all(wanted) is None
    assert "not confirmed yet" in editor.message
    editor.on_answer(Answer(True, revision=4))
    editor.on_frame(confirmed(frames.steady(), 4, slots=8, kv_tokens=16_384))
    assert editor.message == "slots 4→8, kv_tokens 8192→16384 in force"
    back = editor.undo()
    assert back is not None
    assert (back.values, back.base) == ({"slots": 4, "kv_tokens": 8192}, 4)


def test_several_unanswered_settings_are_ours_only_if_all_are_in_force() -> None:
    for limits, said in (({"slots": 8, "queue": 2}, "in force"), ({"slots": 8}, "someone else")):
        editor = Editor()
        editor.on_frame(frames.steady())
        editor.apply_all(together(slots=8, queue=2))
        editor.on_answer(Answer(False, unknown=True))
        editor.on_frame(confirmed(frames.steady(), 4, **limits))
        assert said in editor.message


def test_what_several_settings_mean_is_said_for_all_of_them_together() -> None:
    steady = frames.steady()
    alone = preview_changes(together(slots=8), steady)
    assert (alone.text, alone.level) == ("8 x 2048 = 16.4k > pool 8.2k, preemption possible", "warn")
    more = preview_changes(together(slots=8, kv_tokens=16_384), steady)
    assert (more.text, more.level) == ("8 x 2048 = 16.4k fits the pool 16.4k", "ok")
    refused = preview_changes(together(slots=2, context=10_000), steady)
    assert refused.level == "critical"


def test_undo_is_refused_after_someone_else_changed_a_setting() -> None:
    editor = edited("slots", 8)
    editor.apply()
    editor.on_answer(Answer(True, revision=4))
    editor.on_frame(confirmed(frames.steady(), 5, slots=6))
    order = editor.undo()
    assert order is not None
    assert order.base == 4
    editor.on_answer(Answer(False, message="stale", conflict=True))
    assert "someone else changed a setting" in editor.message


def test_after_a_restart_nothing_can_be_undone() -> None:
    editor = edited("slots", 8)
    editor.apply()
    editor.on_answer(Answer(True, revision=4))
    editor.on_frame(frames.steady().model_copy(update={"boot_id": "boot-2"}))
    assert editor.pending is None
    assert editor.undo() is None


def unanswered() -> Editor:
    """Slots 4→8 was sent and no answer came, as from an engine that was stopped and continued."""
    editor = edited("slots", 8)
    editor.apply()
    editor.on_answer(Answer(False, message="the engine has said nothing for 5 s", unknown=True))
    return editor


def after(frame: Frame, seconds: float) -> Frame:
    return frame.model_copy(update={"uptime": (frame.uptime or 0) + seconds})


def test_an_unanswered_change_is_settled_by_later_frames_and_can_be_undone() -> None:
    editor = unanswered()
    assert editor.pending is not None
    assert editor.message == ""
    editor.on_frame(frames.steady())
    assert editor.pending is not None
    editor.on_frame(confirmed(frames.steady(), 4, slots=8))
    assert (editor.pending, editor.message, editor.failed) == (None, "slots 4→8 in force", False)
    order = editor.undo()
    assert order is not None
    assert (order.values, order.base) == ({"slots": 4}, 4)
    editor.on_answer(Answer(False, unknown=True))
    editor.on_frame(confirmed(frames.steady(), 5))
    assert editor.message == "slots 8→4 taken back"
    assert editor.undo() is None


def test_a_change_that_never_reached_the_engine_is_reported_as_not_in_force() -> None:
    editor = unanswered()
    editor.on_frame(frames.steady())
    editor.on_frame(after(frames.steady(), SETTLED_AFTER))
    assert editor.pending is None
    assert editor.message == "slots 4→8: not in force, the engine has not answered"
    assert editor.failed
    assert editor.undo() is None


def test_a_change_that_is_applied_late_is_still_noticed() -> None:
    editor = unanswered()
    editor.on_frame(frames.steady())
    editor.on_frame(after(frames.steady(), SETTLED_AFTER))
    editor.on_frame(confirmed(frames.steady(), 4, slots=8))
    assert (editor.message, editor.failed) == ("slots 4→8 in force", False)
    assert editor.undo() is not None


def test_an_unanswered_change_that_was_overtaken_by_another_is_reported() -> None:
    editor = unanswered()
    editor.on_frame(confirmed(frames.steady(), 4, queue=2))
    assert editor.pending is None
    assert "someone else" in editor.message
    assert editor.undo() is None


def test_an_unanswered_change_is_not_in_force_after_a_restart() -> None:
    editor = unanswered()
    editor.on_frame(frames.steady().model_copy(update={"boot_id": "boot-2"}))
    assert editor.pending is None
    assert "restarted" in editor.message


def test_digits_replace_and_backspace_returns() -> None:
    editor = edited("budget", 0, 2, 5, 6)
    assert editor.edit is not None
    assert editor.edit.value == 256
    for _ in range(3):
        editor.erase()
    assert editor.edit.value == 64
    editor.erase()
    assert editor.edit.value == 64


@pytest.mark.parametrize(
    ("name", "value", "picture", "text", "level"),
    [
        ("slots", 8, frames.steady, "8 x 2048 = 16.4k > pool 8.2k, preemption possible", "warn"),
        ("slots", 2, frames.steady, "3 running; no admission until 2 are left", "warn"),
        ("slots", 3, frames.steady, "3 x 2048 = 6.1k fits the pool 8.2k", "ok"),
        ("queue", 1, frames.nearly_full, "2 waiting stay, new requests get 503", "warn"),
        ("queue", 0, frames.steady, "without a free slot new requests get 503 at once", "ok"),
        ("context", 4096, frames.steady,
         "new requests only; 4 x 4096 = 16.4k > pool 8.2k, preemption possible", "warn"),
        ("context", 8448, frames.steady, "the model was trained for 8192 tokens; the engine refuses more", "critical"),
        ("budget", 16, frames.steady, "running requests wait less per step, first tokens come later", "ok"),
        ("budget", 128, frames.empty, "first tokens come sooner, running requests may wait longer per step", "ok"),
    ],
)  # fmt: skip
def test_run_06_the_effect_is_shown_before(name: str, value: int, picture: object, text: str, level: str) -> None:
    said = preview_change(name, value, picture())  # type: ignore[operator]
    assert (said.text, said.level) == (text, level)


@pytest.mark.parametrize(
    ("name", "value", "text", "level"),
    [
        ("queue_share", 100, "one user can fill the whole queue; then others get 503", "warn"),
        ("queue_share", 30, "a user with 4 waiting requests gets 503, others still get in", "ok"),
        ("queue_share", 5, "a user with 1 waiting request gets 503", "ok"),
        ("mode", "serial", "once the 3 running have ended: one request at a time, all others wait", "warn"),
        ("mode", "static", "later ones wait until it is done", "warn"),
        ("kv_tokens", 1024, "less than one context of 2048; the engine refuses it", "critical"),
        ("kv_tokens", 16384, "755 MB; 4 x 2048 = 8.2k fits", "ok"),
        ("kv_tokens", 4096, "189 MB; 4 x 2048 = 8.2k > pool 4.1k, preemption possible", "warn"),
        ("preemption", "swap", "copied to host memory and back (RAM to RAM on a CPU), up to 94 MB each way", "ok"),
        ("preemption", "recompute", "loses its KV and is computed again", "ok"),
        ("swap_space", 0, "no swap space", "warn"),
        ("swap_space", 1 << 40, "more than the 24 GB of free memory", "critical"),
        ("prefix_cache", False, "every prompt is computed in full", "warn"),
        ("prefix_sharing", True, "response times reveal what others sent", "warn"),
        ("itl_target", 50, "below the current p95 of 96 ms: prefill is cut", "warn"),
        ("itl_target", 0, "off: each step prefills up to the budget of 64", "ok"),
    ],
)  # fmt: skip
def test_previews_of_the_other_settings(name: str, value: object, text: str, level: str) -> None:
    said = preview_change(name, value, frames.steady())  # type: ignore[arg-type]
    assert text in said.text
    assert said.level == level


def test_every_live_setting_has_a_preview_of_its_own() -> None:
    for name in LIVE_SETTINGS:
        values = choices(name) or (bounds(name).least, bounds(name).most)
        said = [preview_change(name, value, frames.steady()).text for value in values]
        assert all(said)
        assert len({*said}) > 1, name


def test_the_wait_that_a_budget_adds_comes_from_measured_prefills() -> None:
    # 812 tokens in 0.42 s: 0.517 ms each, so 192 more in a step are 99 ms.
    said = preview_change("budget", 256, frames.steady())
    assert said.text == "a running request may wait up to about 99 ms more per step"
