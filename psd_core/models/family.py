"""What a model family must say about its checkpoints: one value per family, one row in the table of families."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from psd_core.config import AttentionName, attention_name
from psd_core.errors import CheckpointError
from psd_core.models.spec import ModelSpec

ConfigJson = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Target:
    """Where a checkpoint tensor goes: rows `start` … `stop` - 1 of parameter `name` (all rows by default).

    `expert` picks one matrix of a parameter that holds one per expert. A copy may be missing, and must equal what
    another tensor puts there: some tied checkpoints store their head although it is the embedding. What is derived
    from config.json may be missing, too, and must agree with what config.json says.
    """

    name: str
    start: int = 0
    stop: int | None = None
    expert: int | None = None
    is_copy: bool = False
    is_derived: bool = False

    @property
    def may_be_missing(self) -> bool:
        return self.is_copy or self.is_derived


@dataclass(frozen=True, slots=True)
class SpecialToken:
    """A token with a role in a family: its text, and its id in the published vocabulary (None: not known)."""

    text: str
    token_id: int | None


@dataclass(frozen=True, slots=True)
class SpecialIds:
    """The special ids of one checkpoint, resolved."""

    mask_id: int
    stop_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Notice:
    """Words that a user must read when a checkpoint is loaded; the marks say which checkpoints are meant.

    name_part     in the folder's or the hub's name, compared without case; empty: all checkpoints of the family
    token_text    of an added token that only these checkpoints have
    """

    name_part: str
    token_text: str
    text: str


@dataclass(frozen=True, slots=True)
class Family:
    """How checkpoints of one architecture are read, and what is known about them."""

    architecture: str  # `architectures[0]` of config.json
    models: str  # the published checkpoints
    read_spec: Callable[[ConfigJson, SpecialIds], ModelSpec]
    targets: Callable[[ModelSpec], dict[str, Target]]  # checkpoint tensor name -> parameter
    mask: SpecialToken
    stops: tuple[SpecialToken, ...]
    licence: str
    parity: str  # the reference data that this code was compared with
    is_shifted: bool = False  # the logits at a position predict the next one
    block_length: int | None = None  # causal, with this block unless config.json names its own; None: full
    block_key: str = "block_length"  # the key of config.json that does
    is_context_causal: bool = False  # of the causal attentions: context-causal, not block-causal
    notices: tuple[Notice, ...] = ()
    needed_name: str | None = None  # part of every checkpoint's name, where autoregressive ones look the same

    @property
    def attention(self) -> AttentionName:
        """What its tokens see."""
        return attention_name(self.block_length, self.is_context_causal)


def head_target(spec: ModelSpec) -> Target:
    """Where the tensor of the head goes: the embedding, if they are tied."""
    return Target("embedding", is_copy=True) if spec.has_tied_head else Target("head")


def read_int(config: ConfigJson, key: str, default: int | None = None, least: int = 1) -> int:
    """An integer of config.json, at least `least`; CheckpointError if it is missing without a default, or wrong.

    The default is not held against `least`: 0 can stand for "there is none".
    """
    value = config.get(key)
    if value is None and default is not None:
        return default
    if isinstance(value, bool) or not isinstance(value, int):
        raise CheckpointError(f"config.json: {key} must be an integer, got {value!r}")
    if value < least:
        raise CheckpointError(f"config.json: {key} must be at least {least}, got {value}")
    return value


def read_float(config: ConfigJson, key: str) -> float:
    """A positive number of config.json; CheckpointError if it is missing or something else."""
    value = config.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise CheckpointError(f"config.json: {key} must be a positive number, got {value!r}")
    return float(value)


def read_multiple(config: ConfigJson, key: str, of: str, default: int | None = None) -> tuple[int, int]:
    """The integers at `key` and `of`; CheckpointError unless the first is a multiple of the second."""
    whole = read_int(config, key)
    part = read_int(config, of, default)
    if whole % part:
        raise CheckpointError(f"config.json: {key} {whole} is no multiple of {of} {part}")
    return whole, part


def read_vocab_size(config: ConfigJson) -> int:
    """Rows of the embedding: LLaDA's embedding_size where it is given, else vocab_size."""
    return read_int(config, "embedding_size", read_int(config, "vocab_size"))


def read_rope_theta(config: ConfigJson) -> float:
    """Base of the rotary frequencies, where old or new versions of transformers write it.

    CheckpointError if the positions are scaled.
    """
    parameters = config.get("rope_parameters")
    if parameters is None:
        return read_float(config, "rope_theta")
    if not isinstance(parameters, Mapping) or parameters.get("rope_type", "default") != "default":
        raise CheckpointError(f"config.json: rope_parameters = {parameters!r} is not supported, only the default type")
    return read_float(parameters if "rope_theta" in parameters else config, "rope_theta")


def read_block_length(config: ConfigJson, family: Family) -> int | None:
    """Block of a causal attention: the checkpoint's own, else the family's; None for full attention."""
    if family.block_length is None:
        return None
    return read_int(config, family.block_key, family.block_length)


def require(config: ConfigJson, expected: Mapping[str, object]) -> None:
    """CheckpointError unless each present key has the one value that this code implements."""
    for key, wanted in expected.items():
        value = config.get(key, wanted)
        if value != wanted and not (value is None and wanted is False):
            raise CheckpointError(f"config.json: {key} = {value!r} is not supported, only {wanted!r}")
