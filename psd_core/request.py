"""What a caller asks of the engine: immutable, validated when built, token ids only."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final, Literal

from psd_core.config import DecoderConfig
from psd_core.errors import RequestError

Granularity = Literal["block", "frontier"]

SEED_LOW: Final = -(2**63)
SEED_HIGH: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a candidate token is drawn from the logits of its position.

    temperature    0 takes the argmax; above 0 adds Gumbel noise keyed by (seed, choice_index, position)
    top_p          keep the smallest set of tokens whose probability reaches top_p, in (0, 1]
    top_k          keep the k most probable tokens; 0 keeps all
    seed           any 64-bit signed integer
    choice_index   distinguishes the choices (`n`) of one request
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    choice_index: int = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and 0.0 <= self.temperature <= 2.0):
            raise RequestError("temperature", f"temperature must be between 0 and 2, got {self.temperature}")
        if not (math.isfinite(self.top_p) and 0.0 < self.top_p <= 1.0):
            raise RequestError("top_p", f"top_p must be above 0 and at most 1, got {self.top_p}")
        if not 0 <= self.top_k <= 2**31:
            raise RequestError("top_k", f"top_k must be 0 (off) or positive, got {self.top_k}")
        if not SEED_LOW <= self.seed <= SEED_HIGH:
            raise RequestError("seed", f"seed must be a 64-bit signed integer, got {self.seed}")


@dataclass(frozen=True, slots=True)
class Request:
    """One sequence to generate.

    request_id     unique among the engine's open requests
    prompt_ids     at least one token id; any id of the vocabulary, the mask id included, is ordinary text here
    max_tokens     tokens to return at most; any positive number, not only multiples of the block
    decoder        how it is decoded
    sampling       how candidates are drawn
    stop_ids       ids that end the text (EOS and the like); the id itself is the last returned token
    min_tokens     stop ids are not sampled at the first `min_tokens` positions
    granularity    when tokens are reported: whole blocks, or as soon as nothing before them is undecided
    watch          also report the canvas after every forward
    """

    request_id: str
    prompt_ids: tuple[int, ...]
    max_tokens: int
    decoder: DecoderConfig = field(default_factory=DecoderConfig)
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stop_ids: frozenset[int] = frozenset()
    min_tokens: int = 0
    granularity: Granularity = "block"
    watch: bool = False

    def __post_init__(self) -> None:
        if not self.prompt_ids:
            raise RequestError("prompt", "prompt must hold at least one token, got none")
        if self.max_tokens < 1:
            raise RequestError("max_tokens", f"max_tokens must be at least 1, got {self.max_tokens}")
        if not 0 <= self.min_tokens <= self.max_tokens:
            raise RequestError(
                "min_tokens",
                f"min_tokens must be between 0 and max_tokens ({self.max_tokens}), got {self.min_tokens}",
            )
