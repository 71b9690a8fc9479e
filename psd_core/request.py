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
MAX_TOP_LOGPROBS: Final = 20
MIN_REPETITION_PENALTY: Final = 0.01  # a logit divided by much less is no finite number any more


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a candidate token is drawn from the logits of its position.

    temperature    0 takes the argmax; above 0 adds Gumbel noise keyed by (seed, choice_index, position)
    top_p          keep the smallest set of tokens whose probability reaches top_p, in (0, 1]
    top_k          keep the k most probable tokens; 0 keeps all
    min_p          keep tokens at least this times as probable as the best one, in [0, 1]; 0 keeps all
    seed           any 64-bit signed integer
    choice_index   distinguishes the choices (`n`) of one request
    presence_penalty, frequency_penalty
                   taken off the logit of a token that the answer holds already, once and per occurrence, in [-2, 2]
    repetition_penalty
                   divides the logit (multiplies a negative one) of a token in prompt, suffix or answer, in [0.01, 2]
    logit_bias     (token id, bias) pairs, added to logits, each bias in [-100, 100], no id twice
    Penalties and bias act before anything else: confidence and log-probabilities are those after them.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    choice_index: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and 0.0 <= self.temperature <= 2.0):
            raise RequestError("temperature", f"temperature must be between 0 and 2, got {self.temperature}")
        if not (math.isfinite(self.top_p) and 0.0 < self.top_p <= 1.0):
            raise RequestError("top_p", f"top_p must be above 0 and at most 1, got {self.top_p}")
        if not 0 <= self.top_k <= 2**31:
            raise RequestError("top_k", f"top_k must be 0 (off) or positive, got {self.top_k}")
        if not SEED_LOW <= self.seed <= SEED_HIGH:
            raise RequestError("seed", f"seed must be a 64-bit signed integer, got {self.seed}")
        if not 0.0 <= self.min_p <= 1.0:
            raise RequestError("min_p", f"min_p must be between 0 and 1, got {self.min_p}")
        for name in ("presence_penalty", "frequency_penalty"):
            if not -2.0 <= getattr(self, name) <= 2.0:
                raise RequestError(name, f"{name} must be between -2 and 2, got {getattr(self, name)}")
        if not MIN_REPETITION_PENALTY <= self.repetition_penalty <= 2.0:
            raise RequestError(
                "repetition_penalty",
                f"repetition_penalty must be between {MIN_REPETITION_PENALTY} and 2, got {self.repetition_penalty}",
            )
        for token_id, bias in self.logit_bias:
            if not -100.0 <= bias <= 100.0:
                raise RequestError(
                    "logit_bias", f"a logit_bias must be between -100 and 100, got {bias} for token {token_id}"
                )
        if len({token_id for token_id, _ in self.logit_bias}) < len(self.logit_bias):
            raise RequestError("logit_bias", "logit_bias must not name a token twice")

    @property
    def has_penalty(self) -> bool:
        """Whether logits depend on what is decided already."""
        return (self.presence_penalty, self.frequency_penalty, self.repetition_penalty) != (0.0, 0.0, 1.0)

    @property
    def has_adjustment(self) -> bool:
        """Whether any logit is changed before a token is chosen."""
        return self.has_penalty or bool(self.logit_bias)


@dataclass(frozen=True, slots=True)
class Request:
    """One sequence to generate.

    request_id     unique among the engine's open requests
    prompt_ids     at least one token id; any id of the vocabulary, the mask id included, is ordinary text here
    max_tokens     tokens to return at most; any number, not only multiples of the block; 0 generates nothing
    decoder        how it is decoded
    sampling       how candidates are drawn
    stop_ids       ids that end the text (EOS and the like); the id itself is the last returned token
    min_tokens     stop ids are not sampled at the first `min_tokens` positions
    granularity    when tokens are reported: whole blocks, or as soon as nothing before them is undecided
    watch          also report the canvas after every forward
    suffix_ids     text that follows the answer: the answer fills a hole of exactly `max_tokens` positions between
                   prompt and suffix, or less if a stop id comes first; only models that attend in both directions
                   see it
    score_prompt   also report the log-probability of every prompt token but the first
    num_top_logprobs
                   alternatives to report per token, with their log-probabilities; 0 reports none
    cache_salt     requests of different salts share no kept context
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
    suffix_ids: tuple[int, ...] = ()
    score_prompt: bool = False
    num_top_logprobs: int = 0
    cache_salt: str = ""

    def __post_init__(self) -> None:
        if not self.prompt_ids:
            raise RequestError("prompt", "prompt must hold at least one token, got none")
        if self.max_tokens < 0:
            raise RequestError("max_tokens", f"max_tokens must not be negative, got {self.max_tokens}")
        if not 0 <= self.num_top_logprobs <= MAX_TOP_LOGPROBS:
            raise RequestError(
                "top_logprobs", f"top_logprobs must be between 0 and {MAX_TOP_LOGPROBS}, got {self.num_top_logprobs}"
            )
        if not 0 <= self.min_tokens <= self.max_tokens:
            raise RequestError(
                "min_tokens",
                f"min_tokens must be between 0 and max_tokens ({self.max_tokens}), got {self.min_tokens}",
            )
