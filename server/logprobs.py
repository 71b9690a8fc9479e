"""Log-probabilities in OpenAI's two formats.

A token's log-probability is the one it had at the moment it was decided, at temperature 1, whatever the request's
temperature; so are those of the alternatives. Those of an echoed prompt are explained at `psd_core.events.PromptEvent`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from server.body import JsonObject
from server.generation import Token

FLOOR: Final = -9999.0  # OpenAI's documented least value; minus infinity is no JSON


def completion_logprobs(tokens: Sequence[Token], num_top: int) -> JsonObject:
    """The parallel lists of /v1/completions."""
    return {
        "tokens": [token.text for token in tokens],
        "token_logprobs": [None if token.logprob is None else _finite(token.logprob) for token in tokens],
        "top_logprobs": [_top(token) for token in tokens] if num_top else None,
        "text_offset": [token.offset for token in tokens],
    }


def chat_logprobs(tokens: Sequence[Token], num_top: int) -> JsonObject:
    """The list of objects of /v1/chat/completions."""
    return {
        "content": [
            _entry(token.text, FLOOR if token.logprob is None else token.logprob)
            | {"top_logprobs": [_entry(other.text, other.logprob) for other in token.top[:num_top]]}
            for token in tokens
        ],
        "refusal": None,
    }


def _top(token: Token) -> JsonObject | None:
    """The alternatives and the token itself by text; None if nothing is known. Of equal texts the likelier counts."""
    if token.logprob is None:
        return None
    top: JsonObject = {token.text: _finite(token.logprob)}
    for other in token.top:
        if other.text not in top or other.token_id == token.token_id:
            top[other.text] = _finite(other.logprob)
    return top


def _entry(text: str, logprob: float) -> JsonObject:
    return {"token": text, "logprob": _finite(logprob), "bytes": list(text.encode("utf-8"))}


def _finite(logprob: float) -> float:
    return max(logprob, FLOOR) if logprob == logprob else FLOOR
