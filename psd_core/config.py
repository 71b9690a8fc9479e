"""Settings of a decoder and of an engine, validated when built.

Every value is final once constructed; deriving another setting makes a new object (`dataclasses.replace`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal, get_args

from psd_core.errors import ConfigError

PolicyName = Literal["greedy", "topk", "threshold", "factor", "entropy", "margin", "localleap", "lopa"]
AcceptanceName = Literal["exact", "subset", "token"]
CacheName = Literal["none", "prefix", "dual", "causal"]
QuantizationName = Literal["none", "int8"]
AttentionName = Literal["full", "block-causal", "context-causal"]
IncrementName = Literal["policy", "subsets"]
DraftIncrement = int | IncrementName
DraftDepth = int | Literal["auto"]

POLICY_NAMES: Final[tuple[PolicyName, ...]] = get_args(PolicyName)
ACCEPTANCE_NAMES: Final[tuple[AcceptanceName, ...]] = get_args(AcceptanceName)
CACHE_NAMES: Final[tuple[CacheName, ...]] = get_args(CacheName)
QUANTIZATION_NAMES: Final[tuple[QuantizationName, ...]] = get_args(QuantizationName)
INCREMENT_NAMES: Final[tuple[IncrementName, ...]] = get_args(IncrementName)

MAX_BLOCK_LENGTH: Final = 1024
MAX_DRAFT_DEPTH: Final = 32
MAX_AUTO_DEPTH: Final = 7  # what "auto" may choose; beyond it drafts hardly ever hold
FIXED_AUTO_DEPTH: Final = 3  # what "auto" is where the tokens would depend on the choice


def attention_name(block_length: int | None, is_context_causal: bool) -> AttentionName:
    """What a model's tokens see.

    full             everything; blocks of any length begin behind the prompt
    block-causal     their own block and earlier ones; blocks begin at multiples of `block_length`
    context-causal   what stands before them, and the open block itself whole; blocks begin behind the prompt
    """
    if block_length is None:
        return "full"
    return "context-causal" if is_context_causal else "block-causal"


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """How one request is decoded. The four axes are independent: policy, cache, draft, acceptance.

    policy            rule that picks the positions to decide (psd_core.policies)
    k                 positions per denoising step of `topk`
    threshold         confidence (`threshold`, `localleap`) or margin (`margin`) that decides a position, in [0, 1]
    factor            of `factor`: n positions may be decided together if the n-th confidence >= 1 - factor / (n + 1)
    gamma             of `entropy`: bound in nats on the summed entropy of positions decided together
    relaxed_threshold confidence that `localleap` asks near a certain position, in [0, 1]
    window            positions on each side that count as near for `localleap`
    branches          of `lopa`: rows beside the block's own state, each with one position more; drafts play no part
    block_length      positions denoised together, L
    draft_depth       number of drafted states per denoising step, D; 0 is the policy alone; "auto" is chosen before
                      each forward (psd_core.depths) if acceptance is `exact`, else 3
    draft_increment   positions added per drafted state, or "policy": what the policy picks from stale candidates, or
                      "subsets": all sets of the most certain positions, {1}, {2}, {1, 2}, {3} …, which are not nested;
                      needs acceptance `exact`, the one rule that takes drafts in any order
    acceptance        when a drafted state counts (psd_core.speculation.verify)
    cache             which positions a denoising forward computes (psd_core.kvcache.modes)
    edit_threshold    probability above which another candidate replaces a decided token of an open block (LLaDA2.1's
                      token editing); None edits nothing. Needs acceptance `exact`
    max_edit_passes   forwards that may go on editing a block once it is full
    canvas_blocks     masked blocks visible beyond the active one; None shows the whole canvas
    """

    policy: PolicyName = "threshold"
    k: int = 2
    threshold: float = 0.9
    factor: float = 1.0
    gamma: float = 0.1
    relaxed_threshold: float = 0.75
    window: int = 4
    branches: int = 5
    block_length: int = 32
    draft_depth: DraftDepth = 3
    draft_increment: DraftIncrement = 1
    acceptance: AcceptanceName = "exact"
    cache: CacheName = "none"
    canvas_blocks: int | None = None
    edit_threshold: float | None = None
    max_edit_passes: int = 16

    def __post_init__(self) -> None:
        _check_choice("policy", self.policy, POLICY_NAMES)
        _check_choice("acceptance", self.acceptance, ACCEPTANCE_NAMES)
        _check_choice("cache", self.cache, CACHE_NAMES)
        _check_int("k", self.k, 1, MAX_BLOCK_LENGTH)
        _check_number("threshold", self.threshold, 0.0, 1.0)
        _check_number("factor", self.factor, 0.0, 1000.0)
        _check_number("gamma", self.gamma, 0.0, 1000.0)
        _check_number("relaxed_threshold", self.relaxed_threshold, 0.0, 1.0)
        _check_int("window", self.window, 0, MAX_BLOCK_LENGTH)
        _check_int("branches", self.branches, 1, MAX_DRAFT_DEPTH)
        _check_int("block_length", self.block_length, 1, MAX_BLOCK_LENGTH)
        if self.draft_depth != "auto":
            if isinstance(self.draft_depth, str):
                raise ConfigError("draft_depth", f"draft_depth must be an integer or 'auto', got {self.draft_depth!r}")
            _check_int("draft_depth", self.draft_depth, 0, MAX_DRAFT_DEPTH)
        self._check_increment()
        _check_int("max_edit_passes", self.max_edit_passes, 1, 1024)
        if self.edit_threshold is not None:
            _check_number("edit_threshold", self.edit_threshold, 0.0, 1.0)
            if self.acceptance != "exact" or self.policy == "lopa":
                raise ConfigError(
                    "edit_threshold",
                    "edit_threshold needs acceptance 'exact' and a policy other than 'lopa': only whole blocks can be "
                    f"compared while tokens change; got {self.acceptance!r} and {self.policy!r}",
                )
        if self.canvas_blocks is not None:
            _check_int("canvas_blocks", self.canvas_blocks, 0, 1_000_000)

    def _check_increment(self) -> None:
        if not isinstance(self.draft_increment, str):
            _check_int("draft_increment", self.draft_increment, 1, MAX_BLOCK_LENGTH)
            return
        if self.draft_increment not in INCREMENT_NAMES:
            names = " or ".join(repr(name) for name in INCREMENT_NAMES)
            raise ConfigError(
                "draft_increment", f"draft_increment must be an integer or {names}, got {self.draft_increment!r}"
            )
        if self.draft_increment == "subsets" and self.acceptance != "exact":
            raise ConfigError(
                "draft_increment",
                "draft_increment 'subsets' needs acceptance 'exact': the other rules take nested drafts only; got "
                f"{self.acceptance!r}",
            )

    @property
    def num_guesses(self) -> int:
        """Rows that a denoising forward may carry beside the block's own state."""
        if self.policy == "lopa":
            return self.branches
        if self.draft_depth == "auto":
            return MAX_AUTO_DEPTH if self.has_auto_depth else FIXED_AUTO_DEPTH
        return self.draft_depth

    @property
    def has_chain(self) -> bool:
        """Whether guesses are nested, so that a row's number says how deep it is."""
        return self.policy != "lopa" and self.draft_increment != "subsets"

    @property
    def has_auto_depth(self) -> bool:
        """Whether the number of drafts is chosen anew for every forward: only where no token depends on it."""
        return self.draft_depth == "auto" and self.may_shed

    @property
    def may_shed(self) -> bool:
        """Whether the tokens stay the same if a forward carries fewer guesses: drafts under `exact` are so harmless."""
        return self.acceptance == "exact" and self.policy != "lopa"


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Limits of one engine.

    max_num_seqs              sequences that may run at once
    max_num_batched_tokens    query tokens per forward; a single larger span that cannot be cut runs alone
    max_refresh_tokens        tokens of new prompts that a forward takes on while it denoises for others, unless those
                              have more tokens themselves; what is longer takes several forwards: a causal model's
                              prompt piece by piece, the first refresh of any other layer by layer
    max_model_len             context limit in tokens (prompt + canvas); None takes the model's own
    max_cache_tokens          slots of the key-value arena, in tokens; None takes room for max_num_seqs full
                              contexts with as much scratch, 2^18 slots, or half the device's free memory,
                              whichever is least
    max_logit_rows            positions projected to the vocabulary at once; bounds the logits' memory
    prefix_cache              keep finished contexts of causal models for later requests that begin alike
    undefined_ids             ids of the vocabulary that no tokenizer defines; never chosen, like the mask id
    """

    max_num_seqs: int = 64
    max_num_batched_tokens: int = 8192
    max_refresh_tokens: int = 256
    max_model_len: int | None = None
    max_cache_tokens: int | None = None
    max_logit_rows: int = 1024
    prefix_cache: bool = True
    undefined_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        _check_int("max_num_seqs", self.max_num_seqs, 1, 65_536)
        _check_int("max_num_batched_tokens", self.max_num_batched_tokens, 1, 2**24)
        _check_int("max_refresh_tokens", self.max_refresh_tokens, 1, 2**24)
        _check_int("max_logit_rows", self.max_logit_rows, 1, 2**20)
        for name in ("max_model_len", "max_cache_tokens"):
            value = getattr(self, name)
            if value is not None:
                _check_int(name, value, 1, 2**31)


def _check_choice(param: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(param, f"{param} must be one of {', '.join(choices)}; got {value!r}")


def _check_int(param: str, value: int, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(param, f"{param} must be an integer, got {value!r}")
    if not low <= value <= high:
        raise ConfigError(param, f"{param} must be between {low} and {high}, got {value}")


def _check_number(param: str, value: float, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(param, f"{param} must be a number, got {value!r}")
    if not math.isfinite(value) or not low <= value <= high:
        raise ConfigError(param, f"{param} must be between {low:g} and {high:g}, got {value}")
