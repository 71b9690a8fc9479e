"""Whether a request can ever be served: pure checks against the limits of a loaded engine.

The API process runs them before it answers; the engine runs them again when a request is added.
"""

from __future__ import annotations

from dataclasses import dataclass

from psd_core.config import CacheName, attention_name
from psd_core.errors import ContextError, RequestError
from psd_core.request import Request


@dataclass(frozen=True, slots=True)
class Limits:
    """What a loaded engine can serve.

    max_model_len      positions of prompt plus canvas
    vocab_size         token ids are 0 … vocab_size - 1
    max_cache_tokens   slots of the key-value arena
    block_length       the one block length of a causal model; None: the model attends everywhere, any will do
    caches             cache modes that suit the model's attention
    is_context_causal  of a causal model: its blocks begin behind the prompt, not at multiples of their length
    """

    max_model_len: int
    vocab_size: int
    max_cache_tokens: int
    block_length: int | None
    caches: tuple[CacheName, ...]
    is_context_causal: bool = False

    @property
    def has_grid(self) -> bool:
        """Whether blocks begin at multiples of their length, whatever the prompt."""
        return attention_name(self.block_length, self.is_context_causal) == "block-causal"


def num_canvas_tokens(request: Request, has_grid: bool) -> int:
    """`max_tokens` rounded up so that the canvas ends with a block: undecided positions the request starts with.

    Blocks begin behind the prompt, or, with a grid, at multiples of the block length. In front of a suffix
    nothing is rounded: the last block is as short as it must be.
    """
    if request.suffix_ids or not request.max_tokens:
        return request.max_tokens
    block_length = request.decoder.block_length
    offset = len(request.prompt_ids) if has_grid else 0
    return -(-(offset + request.max_tokens) // block_length) * block_length - offset


def num_slots(request: Request, has_grid: bool) -> int:
    """Slots of the key-value arena the request holds while it runs.

    Without a cache none. Otherwise its whole context plus scratch for the rows of one denoising forward, each as wide
    as its window and one position more (models whose logits are shifted start their window one position early).
    """
    decoder = request.decoder
    if decoder.cache == "none":
        return 0
    num_prompt = len(request.prompt_ids)
    num_canvas = num_canvas_tokens(request, has_grid) + len(request.suffix_ids)
    num_rows = 1 + decoder.num_guesses
    if decoder.cache == "prefix":
        return num_prompt + num_rows * (num_canvas + 1)
    return num_prompt + num_canvas + num_rows * (decoder.block_length + 1)


def check(request: Request, limits: Limits) -> None:
    """Raise RequestError or ContextError if the request can never run alone on this engine."""
    for token_id in request.prompt_ids:
        if not 0 <= token_id < limits.vocab_size:
            raise RequestError(
                "prompt", f"prompt token ids must be between 0 and {limits.vocab_size - 1}, got {token_id}"
            )
    for token_id in request.suffix_ids:
        if not 0 <= token_id < limits.vocab_size:
            raise RequestError(
                "suffix", f"suffix token ids must be between 0 and {limits.vocab_size - 1}, got {token_id}"
            )
    for token_id, _ in request.sampling.logit_bias:
        if not 0 <= token_id < limits.vocab_size:
            raise RequestError(
                "logit_bias", f"token ids in logit_bias must be between 0 and {limits.vocab_size - 1}, got {token_id}"
            )
    for stop_id in sorted(request.stop_ids):
        if not 0 <= stop_id < limits.vocab_size:
            raise RequestError(
                "stop_token_ids",
                f"stop token ids must be between 0 and {limits.vocab_size - 1}, got {stop_id}",
            )
    decoder = request.decoder
    if decoder.cache not in limits.caches:
        raise RequestError(
            "psd.cache", f"cache must be one of {', '.join(limits.caches)} for this model, got {decoder.cache!r}"
        )
    if limits.block_length is not None and decoder.block_length != limits.block_length:
        raise RequestError(
            "psd.block_length",
            f"block_length must be {limits.block_length} for this model, got {decoder.block_length}",
        )
    if request.suffix_ids and limits.block_length is not None:
        raise RequestError(
            "suffix", "suffix needs a model that sees what follows; this one attends to earlier blocks only"
        )
    num_prompt, num_suffix = len(request.prompt_ids), len(request.suffix_ids)
    num_canvas = num_canvas_tokens(request, limits.has_grid)
    total = num_prompt + num_canvas + num_suffix
    if total > limits.max_model_len:
        rounded = f", rounded up to {num_canvas} in blocks of {decoder.block_length}" if not num_suffix else ""
        suffix = f" plus suffix ({num_suffix} tokens)" if num_suffix else ""
        too_long = "max_tokens" if num_prompt < limits.max_model_len else "prompt"
        raise ContextError(
            "suffix" if num_suffix > num_prompt and num_prompt + num_suffix >= limits.max_model_len else too_long,
            f"prompt ({num_prompt} tokens) plus max_tokens ({request.max_tokens}{rounded}){suffix} is {total} tokens; "
            f"the context limit is {limits.max_model_len} tokens",
        )
    slots = num_slots(request, limits.has_grid)
    if slots > limits.max_cache_tokens:
        raise ContextError(
            "max_tokens",
            f"the request needs {slots} cache slots (context plus {1 + decoder.num_guesses} rows); "
            f"the cache holds {limits.max_cache_tokens}",
        )
