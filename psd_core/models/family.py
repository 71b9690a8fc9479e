"""What a model family must say about its checkpoints: one value per family, one row in the table of families."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from psd_core.errors import CheckpointError
from psd_core.models.spec import ModelSpec

ConfigJson = Mapping[str, object]
SpecialIds = Mapping[str, int]  # text of an added token -> its id, from tokenizer.json; empty without one


@dataclass(frozen=True, slots=True)
class Target:
    """Where a checkpoint tensor goes: rows `start` … `stop` - 1 of parameter `name` (all rows by default).

    `expert` picks one matrix of a parameter that holds one per expert.
    """

    name: str
    start: int = 0
    stop: int | None = None
    expert: int | None = None


@dataclass(frozen=True, slots=True)
class Family:
    """How checkpoints of one architecture are read."""

    architecture: str  # `architectures[0]` of config.json
    read_spec: Callable[[ConfigJson, SpecialIds], ModelSpec]
    targets: Callable[[ModelSpec], dict[str, Target]]  # checkpoint tensor name -> parameter


def read_int(config: ConfigJson, key: str, default: int | None = None) -> int:
    """An integer of config.json; CheckpointError if it is missing without a default, or no integer."""
    value = config.get(key)
    if value is None:
        value = default
    if isinstance(value, bool) or not isinstance(value, int):
        raise CheckpointError(f"config.json: {key} must be an integer, got {value!r}")
    return value


def read_float(config: ConfigJson, key: str) -> float:
    """A number of config.json; CheckpointError if it is missing or no number."""
    value = config.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise CheckpointError(f"config.json: {key} must be a number, got {value!r}")
    return float(value)


def require(config: ConfigJson, expected: Mapping[str, object]) -> None:
    """CheckpointError unless each present key has the one value that this code implements."""
    for key, wanted in expected.items():
        value = config.get(key, wanted)
        if value != wanted and not (value is None and wanted is False):
            raise CheckpointError(f"config.json: {key} = {value!r} is not supported, only {wanted!r}")


def read_ids(config: ConfigJson, key: str) -> tuple[int, ...]:
    """One token id or a list of them; empty if the key is missing or null."""
    value = config.get(key)
    if value is None:
        return ()
    ids = value if isinstance(value, list) else [value]
    if not all(isinstance(item, int) and not isinstance(item, bool) for item in ids):
        raise CheckpointError(f"config.json: {key} must be a token id or a list of them, got {value!r}")
    return tuple(ids)


def mask_id_of(config: ConfigJson, special_ids: SpecialIds, text: str, usual: int, vocab_size: int) -> int:
    """The mask id: the tokenizer's id of `text`, else config.json's, else the family's `usual` one.

    CheckpointError if tokenizer and config disagree, or the id is outside the vocabulary.
    """
    declared = read_ids(config, "mask_token_id")
    from_text = special_ids.get(text)
    if from_text is not None and declared and declared[0] != from_text:
        raise CheckpointError(
            f"the mask token {text!r} has id {from_text} in tokenizer.json, but config.json says {declared[0]}"
        )
    mask_id = from_text if from_text is not None else declared[0] if declared else usual
    if not 0 <= mask_id < vocab_size:
        raise CheckpointError(f"mask_token_id {mask_id} is outside the vocabulary ({vocab_size})")
    return mask_id


def stop_ids_of(config: ConfigJson, special_ids: SpecialIds, *texts: str) -> tuple[int, ...]:
    """Ids that end a text: config.json's eos_token_id, and the tokenizer's ids of the family's stop `texts`."""
    known = (special_ids[text] for text in texts if text in special_ids)
    return tuple(dict.fromkeys([*read_ids(config, "eos_token_id"), *known]))
