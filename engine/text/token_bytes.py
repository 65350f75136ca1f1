"""The bytes of one token, read from its entry in the vocabulary.

A token may be a part of a character, which has no text of its own. Clients that rebuild an answer from its tokens
therefore join their bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

_BYTE_TOKEN = re.compile("<0x([0-9A-Fa-f]{2})>")
_SPACE_MARK = "▁"


def _byte_letters() -> dict[str, int]:
    """The letter for each byte in byte-level vocabularies (those of GPT-2), as a table from letter to byte.

    A printable byte is written as itself. The others, in order, are the characters from U+0100 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


def bytes_reader(decoder: dict[str, Any] | None) -> Callable[[str], bytes]:
    """A function from an entry of the vocabulary to its bytes. ``decoder`` is that of ``tokenizer.json``."""
    parts = (decoder or {}).get("decoders") or [decoder or {}]
    kinds = {part.get("type") for part in parts}
    if "ByteLevel" in kinds:
        letters = _byte_letters()
        return lambda token: b"".join(
            bytes([letters[letter]]) if letter in letters else letter.encode() for letter in token
        )

    def read(token: str) -> bytes:
        single = _BYTE_TOKEN.fullmatch(token) if "ByteFallback" in kinds else None
        return bytes([int(single[1], 16)]) if single else token.replace(_SPACE_MARK, " ").encode()

    return read
