"""Whether a request can ever be served: pure checks against the limits of a loaded engine.

The API process runs them before it answers; the engine runs them again when a request is added.
"""

from __future__ import annotations

from dataclasses import dataclass

from psd_core.errors import ContextError, RequestError
from psd_core.request import Request


@dataclass(frozen=True, slots=True)
class Limits:
    """What a loaded engine can serve.

    max_model_len      positions of prompt plus canvas
    vocab_size         token ids are 0 … vocab_size - 1
    max_cache_tokens   slots of the key-value arena
    """

    max_model_len: int
    vocab_size: int
    max_cache_tokens: int


def num_canvas_tokens(request: Request) -> int:
    """`max_tokens` rounded up to whole blocks: masked positions the request starts with."""
    block_length = request.decoder.block_length
    return -(-request.max_tokens // block_length) * block_length


def num_slots(request: Request) -> int:
    """Slots of the key-value arena the request holds while it runs.

    Without a cache none. Otherwise its whole context plus scratch for the rows of one denoising forward.
    """
    decoder = request.decoder
    if decoder.cache == "none":
        return 0
    num_canvas = num_canvas_tokens(request)
    window = num_canvas if decoder.cache == "prefix" else decoder.block_length
    return len(request.prompt_ids) + num_canvas + (1 + decoder.draft_depth) * window


def check(request: Request, limits: Limits) -> None:
    """Raise RequestError or ContextError if the request can never run alone on this engine."""
    for token_id in request.prompt_ids:
        if not 0 <= token_id < limits.vocab_size:
            raise RequestError(
                "prompt", f"prompt token ids must be between 0 and {limits.vocab_size - 1}, got {token_id}"
            )
    for stop_id in sorted(request.stop_ids):
        if not 0 <= stop_id < limits.vocab_size:
            raise RequestError(
                "stop_token_ids",
                f"stop token ids must be between 0 and {limits.vocab_size - 1}, got {stop_id}",
            )
    num_prompt = len(request.prompt_ids)
    num_canvas = num_canvas_tokens(request)
    if num_prompt + num_canvas > limits.max_model_len:
        raise ContextError(
            "max_tokens" if num_prompt < limits.max_model_len else "prompt",
            f"prompt ({num_prompt} tokens) plus max_tokens ({request.max_tokens}, rounded up to {num_canvas} in "
            f"blocks of {request.decoder.block_length}) is {num_prompt + num_canvas} tokens; the context limit "
            f"is {limits.max_model_len} tokens",
        )
    slots = num_slots(request)
    if slots > limits.max_cache_tokens:
        raise ContextError(
            "max_tokens",
            f"the request needs {slots} cache slots (context plus {1 + request.decoder.draft_depth} draft rows); "
            f"the cache holds {limits.max_cache_tokens}",
        )
