"""Themes: cycling, broken files, readable contrast."""

from __future__ import annotations

from pathlib import Path

from textual.color import Color
from textual.theme import Theme

from tests.support import frames
from tests.support.console_app import console, seen

SIZE = (80, 24)


async def test_themes_cycle_and_a_broken_user_theme_gives_one_toast(tmp_path: Path) -> None:
    folder = tmp_path / "data_home" / "slotdeck" / "themes"
    folder.mkdir(parents=True)
    (folder / "broken.toml").write_text('name = "x"\nprimary = "not a colour"\n')
    app, _source = console(frames.steady())
    async with app.run_test(size=SIZE) as pilot:
        await seen(pilot, "slots 3/4")
        toasts = [n.message for n in app._notifications]
        assert len(toasts) == 1
        assert toasts[0].startswith("theme broken.toml: ")
        before = app.theme
        for _ in app._themes:
            await pilot.press("t")
            await seen(pilot, f"theme {app.theme}")
        assert app.theme == before


def contrast_ratio(one: Color, other: Color) -> float:
    """As WCAG defines it."""

    def luminance(colour: Color) -> float:
        parts = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour.normalized]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_themes_are_readable() -> None:
    """Labels and states keep a contrast of 4.5, quiet text one of 3, on every theme with colours of its own."""
    from slotdeck.console.terminal.themes import SLOT_STATES, load_themes

    themes, problems = load_themes()
    assert problems == []
    assert set(themes) == {"slotdeck-dark", "slotdeck-light", "slotdeck-contrast", "slotdeck-ansi"}
    for theme in themes.values():
        assert isinstance(theme.theme, Theme)
        if theme.theme.ansi:
            continue
        ground = Color.parse(theme.theme.background or "")
        for name, style in theme.styles.items():
            assert style.color is not None
            contrast = contrast_ratio(ground, Color.from_rich_color(style.color))
            if name in ("label", "value", "text", "warn", "critical", "ok", "key", *SLOT_STATES[1:]):
                assert contrast >= 4.5, (theme.theme.name, name, contrast)
            elif name in ("idle", "cached"):
                assert contrast >= 3, (theme.theme.name, name, contrast)
