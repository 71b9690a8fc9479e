"""Log-probabilities in OpenAI's two formats.

A token's log-probability is the one it had at the moment it was decided, at temperature 1, whatever the request's
temperature. Only the chosen token is known, so a `top` list holds that one or nothing.
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
        "token_logprobs": [_finite(token.logprob) for token in tokens],
        "top_logprobs": [{token.text: _finite(token.logprob)} for token in tokens] if num_top else None,
        "text_offset": [token.offset for token in tokens],
    }


def chat_logprobs(tokens: Sequence[Token], num_top: int) -> JsonObject:
    """The list of objects of /v1/chat/completions."""
    return {
        "content": [_entry(token) | {"top_logprobs": [_entry(token)] * num_top} for token in tokens],
        "refusal": None,
    }


def _entry(token: Token) -> JsonObject:
    return {"token": token.text, "logprob": _finite(token.logprob), "bytes": list(token.text.encode("utf-8"))}


def _finite(logprob: float) -> float:
    return max(logprob, FLOOR) if logprob == logprob else FLOOR
