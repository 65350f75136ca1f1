"""Simulated users and the bench: traffic for any OpenAI-compatible URL, timed from the client's side."""

from typing import Literal

Kind = Literal["chat", "agent", "document"]
"""A chat user reads between two turns; an agent asks again at once; a document is read whole and summed up in a few
words, and the next one follows at once."""
