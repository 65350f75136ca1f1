"""Turns the body of a chat request into prompt tokens. Runs in the threads of the tokenizer pool."""

from __future__ import annotations

from dataclasses import dataclass

from slotdeck.engine.core.block_pool import BlockHash, hash_prompt
from slotdeck.engine.server.chat_request import ChatRequest, read_chat_request, read_json
from slotdeck.engine.server.context import ServerContext
from slotdeck.engine.server.errors import TOO_LONG, ApiError, invalid
from slotdeck.engine.text.template import ChatTemplateError


@dataclass(frozen=True, slots=True)
class Prepared:
    """A valid chat request and its prompt."""

    chat: ChatRequest
    token_ids: list[int]
    block_hashes: list[BlockHash]
    """Of the prompt's full blocks, for the prefix cache; empty while nothing is cached."""


def prepare(context: ServerContext, user: str, body: bytes | bytearray) -> Prepared:
    """Validate ``body``, tokenize its prompt and hash its blocks. Raises ApiError 400, or 404 for another model."""
    chat = read_chat_request(read_json(body), context.model.id, context.model.vocabulary)
    places = context.engine.max_waiting_per_user
    if chat.n > places + 1:  # one request computes the prompt while the others wait in the queue
        raise invalid(
            "n", f"'n' is {chat.n}, but one user may have {places} requests in the queue: ask for at most {places + 1}"
        )
    text, limit = context.text, context.engine.max_request_tokens
    if not text.has_chat_template:
        raise invalid("messages", "this model has no chat template, so it cannot chat; serve an instruct model")
    # Do not tokenize a prompt that cannot fit. Each message has at least one token, and no token is longer than the
    # longest of the vocabulary.
    num_characters = sum(len(message["content"]) for message in chat.messages)
    at_least = max(text.min_num_tokens(num_characters), len(chat.messages))
    if at_least >= limit:
        raise prompt_too_long(f"at least {at_least}", limit)
    try:
        token_ids = text.encode_chat(chat.messages)
    except ChatTemplateError as error:
        logged = "its messages do not fit the chat template"  # the template's own message may quote them
        raise invalid("messages", str(error), code="chat_template_error", logged=logged) from error
    if not token_ids:
        raise invalid("messages", "the conversation renders to an empty prompt")
    if len(token_ids) >= limit:
        raise prompt_too_long(str(len(token_ids)), limit)
    cache_salt = context.engine.cache_salt(user)
    return Prepared(chat, token_ids, [] if cache_salt is None else hash_prompt(token_ids, cache_salt))


def prompt_too_long(count: str, limit: int) -> ApiError:
    """400: a prompt of ``count`` tokens does not fit into ``limit`` tokens of context."""
    return invalid(
        "messages",
        f"the prompt has {count} tokens, but the context of this server is {limit} tokens and one must be left for "
        f"the answer: send at most {limit - 1}, or have the admin raise --context",
        code=TOO_LONG,
    )
