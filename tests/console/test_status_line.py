"""Messages on the status line: how long they stay, who may withdraw them, and what comes before them."""

from __future__ import annotations

from slotdeck.console.session.prompts import ConfirmPrompt, TextPrompt, ValuePrompt
from slotdeck.console.session.status_line import MESSAGE_SECONDS, StatusLine
from slotdeck.console.settings.editor import SettingsEditor
from tests.support import frames


class Line(StatusLine):
    """A status line with a clock that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0
        super().__init__(lambda: self.now)
        self.editor = SettingsEditor(self.say)

    @property
    def text(self) -> str:
        status = self.status(self.editor, frames.steady())
        return f"{status.head} {status.text}".strip()


def test_a_message_stays_for_its_seconds() -> None:
    line = Line()
    line.say("hello", failed=True)
    assert line.status(line.editor, None).level == "critical"
    line.now += MESSAGE_SECONDS
    assert line.text == "hello"
    line.now += 0.1
    assert line.text == ""


def test_a_message_is_withdrawn_only_if_it_is_still_shown() -> None:
    line = Line()
    first = line.say("same words")
    line.withdraw(first)
    assert line.text == ""
    second = line.say("same words")
    line.withdraw(first)
    assert line.text == "same words"
    line.withdraw(second)
    assert line.text == ""


def test_an_edited_setting_comes_before_a_message_and_a_prompt_before_both() -> None:
    line = Line()
    line.editor.select("slots", frames.steady().limits)
    line.say("hello")
    assert line.text.startswith("slots 4")
    line.ask(ConfirmPrompt("cancel?", "its stream ends", lambda: None))
    assert line.text.startswith("cancel?")
    assert line.press("n", "n")
    assert not line.press("n", "n")
    assert line.text.startswith("slots 4")


def test_a_question_is_confirmed_by_y_alone() -> None:
    confirmed: list[str] = []
    for key in ("n", "enter", "escape", "Y", "y"):
        ConfirmPrompt("sure?", "", lambda key=key: confirmed.append(key)).press(key, key)  # type: ignore[misc]
    assert confirmed == ["y"]


def test_a_text_takes_effect_while_it_is_typed_and_esc_clears_it() -> None:
    seen: list[str] = []
    prompt = TextPrompt("filter", seen.append)
    for key in ("a", "b", "backspace"):
        assert prompt.press(key, key if len(key) == 1 else None)
    assert not prompt.press("escape", None)
    assert seen == ["a", "ab", "a", ""]


def test_a_refused_value_keeps_the_prompt_open_with_the_reason() -> None:
    prompt = ValuePrompt("users", "a number", lambda text: None if text.isdigit() else "not a number")
    prompt.press("x", "x")
    assert prompt.press("enter", None)
    assert (prompt.status.text, prompt.status.level) == ("not a number", "critical")
    prompt.press("ctrl+u", None)
    prompt.press("7", "7")
    assert prompt.status.text == "a number"
    assert not prompt.press("enter", None)
