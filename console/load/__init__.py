"""Simulated users: traffic for any OpenAI-compatible URL, timed by the client."""

from typing import Literal

Kind = Literal["chat", "agent", "document"]
"""A chat user reads between two turns. An agent asks again at once. A document user sends one long text after another
and asks for a short summary of each."""
