"""Labels that could break a terminal: markup, escape codes, wide and combining characters, control characters."""

from __future__ import annotations

from hypothesis import strategies as st

HOSTILE = (
    "[bold red]x[/bold red]", "[/]", "\x1b[2J\x1b[31mred", "a\nb\r\tc\x00\x07\x9b31m",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467 family", "三匹の猫が好き", "שלום עולם", "مرحبا", "\u202eevil\u202c",
    "e\u0301\u0301\u0301", "\u200b\u200d\ufeff", "\U0001f1e9\U0001f1ea", "\u2764\ufe0f", "한국어", "\u1100\u1161\u11a8",
    "x" * 10_000, "猫" * 5_000, "", " ", "\ud800", "\U000e0041", "\ufdfa", "a\u2028b\u2029c\x85d",
)  # fmt: skip


labels = st.one_of(st.sampled_from(HOSTILE), st.text(max_size=60))
