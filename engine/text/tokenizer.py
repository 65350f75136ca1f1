"""The tokenizer and chat template of a model: chat messages to token ids, and token ids to text.

Only ``tokenizers`` and ``jinja2`` are used, since importing transformers would add seconds to every start. Text inside
a message never becomes a special token, whatever a user types.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from slotdeck.engine.text.template import ChatTemplateError, Message, compile_template
from slotdeck.engine.text.token_bytes import bytes_reader

# The server tokenizes in its own threads. A second pool inside tokenizers would only take cores from the engine.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


class TokenizerError(ValueError):
    """The tokenizer folder cannot be used. The message says why."""


class TextModel:
    """The tokenizer and chat template in ``folder``. Every method may be called from any thread.

    Raises TokenizerError if ``tokenizer.json`` is missing or unreadable, ChatTemplateError if the template does not
    compile. Nothing is downloaded. No code from the folder runs except the template, which runs in its sandbox.
    """

    def __init__(self, folder: Path) -> None:
        path = Path(folder) / "tokenizer.json"
        try:
            document = json.loads(path.read_text("utf-8"))
            # Match special tokens in the text before it is normalised, exactly as ``_special_pattern`` finds them.
            for added in document.get("added_tokens") or []:
                if added.get("special"):
                    added["normalized"] = False
            document["truncation"] = document["padding"] = None
            source = json.dumps(document)
            self._tokenizer = Tokenizer.from_str(source)
            self._literal = Tokenizer.from_str(source)
        except FileNotFoundError as error:
            raise TokenizerError(
                f"{path} is missing; save the tokenizer in the fast format: AutoTokenizer(...).save_pretrained(folder)"
            ) from error
        except Exception as error:  # tokenizers raises bare Exception
            raise TokenizerError(f"{path} cannot be read as a tokenizer: {error}") from error
        self._literal.encode_special_tokens = True
        added_tokens = self._tokenizer.get_added_tokens_decoder()
        self._added = {index: token.content for index, token in added_tokens.items()}
        self._bytes_of = bytes_reader(document.get("decoder"))
        self._special = {token.content: index for index, token in added_tokens.items() if token.special}
        self._special_ids = frozenset(self._special.values())
        strings = sorted(self._special, key=len, reverse=True)
        self._special_pattern = re.compile("|".join(map(re.escape, strings))) if strings else None
        self._special_prefixes = {text[:n] for text in strings for n in range(1, len(text))}
        self._longest_token = max(map(len, self._tokenizer.get_vocab(with_added_tokens=True)), default=1)

        config = _read_json(Path(folder) / "tokenizer_config.json")
        names = {name: _token_text(value) for name, value in config.items() if name.endswith("_token")}
        tokens = {name: text for name, text in names.items() if text is not None}
        self.end_token_ids = frozenset(
            index for name in ("eos_token",) if (index := self._token_id(tokens.get(name))) is not None
        )
        """Tokens that end a text, by the configuration of the tokenizer."""
        template = _read_template(Path(folder), config)
        self._render = compile_template(template, tokens) if template else None

    @property
    def has_chat_template(self) -> bool:
        return self._render is not None

    def min_num_tokens(self, num_characters: int) -> int:
        """A lower bound for the number of tokens in a text of ``num_characters``, without tokenizing it."""
        return num_characters // self._longest_token

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of the rendered conversation, ready for the assistant's turn.

        If ``content`` contains the text of a special token, that is encoded as ordinary text. Everything else is
        tokenized exactly as in the rendered text. Releases the GIL while tokenizing. Raises ChatTemplateError.
        """
        if self._render is None:
            raise ChatTemplateError("this model has no chat template")
        if self._special_pattern is None:
            return self._encode(self._tokenizer, self._render(messages))
        # A marker replaces such text of the user. Its nonce cannot be guessed, so nobody can type a marker.
        nonce = secrets.token_hex(16)
        literals: list[str] = []

        def protect(text: str) -> str:
            literals.append(text)
            return f"[{nonce}:{len(literals) - 1}]"

        protected = [
            message | {"content": self._protect_special_tokens(message["content"], protect)} for message in messages
        ]
        rendered = self._render(protected)
        if self._forms_special_token(protected, rendered, nonce):
            protected = [message | {"content": protect("") + message["content"] + protect("")} for message in protected]
            rendered = self._render(protected)
        if not literals:
            return self._encode(self._tokenizer, rendered)
        ids: list[int] = []
        for index, piece in enumerate(re.split(rf"\[{nonce}:(\d+)\]", rendered)):
            if index % 2:
                ids += self._encode_literal(literals[int(piece)])
            elif piece:
                ids += self._encode(self._tokenizer, piece)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ``ids`` without special tokens. An incomplete character becomes U+FFFD."""
        return str(self._tokenizer.decode(ids, skip_special_tokens=True))

    def token_bytes(self, index: int) -> bytes:
        """The bytes of a token, which may be a part of a character. Empty for an id without a token."""
        if index in self._added:
            return self._added[index].encode()
        token = self._tokenizer.id_to_token(index)
        return b"" if token is None else self._bytes_of(token)

    def _protect_special_tokens(self, content: str, protect: Any) -> str:
        assert self._special_pattern is not None
        return self._special_pattern.sub(lambda match: protect(match.group()), content)

    def _forms_special_token(self, protected: Sequence[Message], rendered: str, nonce: str) -> bool:
        """Whether a special token forms where two contents meet, of which each holds a part."""
        assert self._special_pattern is not None
        tails = (message["content"].rstrip() for message in protected)
        if not any(tail[-n:] in self._special_prefixes for tail in tails for n in range(1, min(len(tail), 64) + 1)):
            return False
        edge = f"[{nonce}:edge]"
        apart = self._render_apart(protected, edge)
        return len(self._special_pattern.findall(rendered)) != len(self._special_pattern.findall(apart))

    def _render_apart(self, protected: Sequence[Message], edge: str) -> str:
        assert self._render is not None
        return self._render([message | {"content": edge + message["content"] + edge} for message in protected])

    def _encode_literal(self, text: str) -> list[int]:
        ids = self._encode(self._literal, text)
        if not self._special_ids.isdisjoint(ids):
            # The text is also an ordinary entry of the vocabulary. Its single characters are not.
            ids = [index for character in text for index in self._encode(self._literal, character)]
        return [index for index in ids if index not in self._special_ids]

    @staticmethod
    def _encode(tokenizer: Tokenizer, text: str) -> list[int]:
        # encode() would hold the GIL and stop every stream. The batch call releases it.
        return list(tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids) if text else []

    def _token_id(self, text: str | None) -> int | None:
        index = None if text is None else self._tokenizer.token_to_id(text)
        return index if index is None else int(index)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise TokenizerError(f"{path} cannot be read: {error}") from error
    return document if isinstance(document, dict) else {}


def _token_text(value: Any) -> str | None:
    """The text of a token in ``tokenizer_config.json``, which is a string or an object with ``content``."""
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None


def _read_template(folder: Path, config: dict[str, Any]) -> str | None:
    """``chat_template.jinja``, or else ``chat_template`` of the configuration: if it names several, the ``default``."""
    try:
        return (folder / "chat_template.jinja").read_text("utf-8")
    except FileNotFoundError:
        template = config.get("chat_template")
    if isinstance(template, list):
        named = {item.get("name"): item.get("template") for item in template if isinstance(item, dict)}
        template = named.get("default")
    return template if isinstance(template, str) and template.strip() else None
