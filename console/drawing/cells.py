"""Lines of a screen as data: spans of text with a style name, measured in terminal cells.

Every line has exactly the requested width, whatever a client puts into its label: control characters, right-to-left
text, combining characters and characters of unreliable width become ``?`` before they are measured.
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache

from rich.cells import cell_len

Span = tuple[str, str]
"""Text and the name of its style (:data:`slotdeck.console.terminal.themes.STYLE_NAMES`)."""

Line = tuple[Span, ...]
"""One row of the screen. Lines are compared by value to find the rows that must be painted again."""

UNKNOWN = "–"
"""Shown for every unknown value, instead of 0."""

MAX_LABEL = 256
"""Characters of a label that are used. No column is wider."""

_SYMBOLS_END = 0x2190
"""Symbols (category So) from here on may be drawn as emoji, two cells wide, by some terminals."""


def _allowed(character: str) -> bool:
    """True for characters that every terminal draws in reading order with the width that ``cell_len`` says."""
    code = ord(character)
    category = unicodedata.category(character)
    if code > 0xFFFF or category[0] in "CM" or category in ("Zl", "Zp"):
        return False
    if category == "So" and code >= _SYMBOLS_END:
        return False
    if unicodedata.bidirectional(character) in ("R", "AL", "AN"):
        return False
    width = cell_len(character)
    return width == 1 or (width == 2 and category[0] in "LNP")


@lru_cache(maxsize=4096)
def clean(text: str) -> str:
    """Text from outside as one line of safe characters. A run of any others becomes one ``?``."""
    text = text[:MAX_LABEL]
    if text.isascii() and text.isprintable():
        return text
    kept: list[str] = []
    for character in unicodedata.normalize("NFC", text):
        if character.isspace():
            kept.append(" ")
        elif _allowed(character):
            kept.append(character)
        elif not kept or kept[-1] != "?":
            kept.append("?")
    return "".join(kept)


def cell_width(text: str) -> int:
    """Cells that clean text takes."""
    return len(text) if text.isascii() else cell_len(text)


def cut(text: str, width: int) -> str:
    """Clean text cut to at most ``width`` cells, with ``…`` where something is missing."""
    if width <= 0:
        return ""
    if cell_width(text) <= width:
        return text
    kept: list[str] = []
    room = width - 1
    for character in text:
        room -= cell_width(character)
        if room < 0:
            break
        kept.append(character)
    return "".join(kept) + "…"


def left(text: str, width: int) -> str:
    """Clean text in exactly ``width`` cells, flush left."""
    text = cut(text, width)
    return text + " " * (width - cell_width(text))


def right(text: str, width: int) -> str:
    """Clean text in exactly ``width`` cells, flush right."""
    text = cut(text, width)
    return " " * (width - cell_width(text)) + text


def line_width(line: Line) -> int:
    """Cells of a whole line."""
    return sum(cell_width(text) for text, _ in line)


def exact(spans: list[Span] | Line, width: int, style: str = "text") -> Line:
    """The spans cut or padded to exactly ``width`` cells."""
    kept: list[Span] = []
    room = width
    for text, name in spans:
        if not text:
            continue
        size = cell_width(text)
        if size > room:
            if room > 0 and cell_width(text.rstrip()) <= room:
                kept.append((left(text.rstrip(), room), name))
                room = 0
            elif room > 0:
                # Half a number would be another number.
                part = "…" if name == "value" else cut(text, room)
                kept.append((part, name))
                room -= cell_width(part)
            break
        kept.append((text, name))
        room -= size
    if room > 0:
        kept.append((" " * room, style))
    return tuple(kept)


def blank(width: int) -> Line:
    """An empty line."""
    return ((" " * width, "text"),) if width > 0 else ()


def beside(start: list[Line], end: list[Line], start_cells: int, end_cells: int) -> list[Line]:
    """Two blocks side by side with a thin rule between them; the shorter one is filled up."""
    rows = max(len(start), len(end))
    start = start + [blank(start_cells)] * (rows - len(start))
    end = end + [blank(end_cells)] * (rows - len(end))
    return [(*a, ("│", "rule"), *b) for a, b in zip(start, end, strict=True)]


def plain(line: Line) -> str:
    """The text of a line without styles."""
    return "".join(text for text, _ in line)


def wrap(text: str, width: int, height: int) -> list[str]:
    """Clean text over at most ``height`` rows of ``width`` cells, broken at spaces; the last row is cut."""
    result: list[str] = []
    rest = text
    while rest and len(result) < height - 1 and cell_width(rest) > width:
        words = rest.split(" ")
        count = len(words)
        while count > 1 and cell_width(" ".join(words[:count])) > width:
            count -= 1
        result.append(cut(" ".join(words[:count]), width))
        rest = " ".join(words[count:])
    if rest:
        result.append(cut(rest, width))
    return result
