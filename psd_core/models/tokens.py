"""Special ids of a checkpoint: found by their text in the tokenizer's files and held against config and family table.

Whoever speaks must agree. A tokenizer, a config.json and a family that contradict each other mean that the files do
not belong together, and decoding would fill prompts or never stop.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from psd_core.errors import CheckpointError
from psd_core.models.family import ConfigJson, Family, SpecialIds, SpecialToken
from psd_core.models.files import read_json, read_optional_json


@dataclass(frozen=True, slots=True)
class TokenTexts:
    """What the files of a tokenizer say, without the tokenizer itself. `folder` is for messages."""

    folder: Path
    ids: Mapping[str, int]  # text of an added token -> its id
    eos_text: str | None

    @property
    def eos_id(self) -> int | None:
        """Id of the tokenizer's end-of-text token, if it is an added token."""
        return None if self.eos_text is None else self.ids.get(self.eos_text)


def read_token_texts(folder: Path) -> TokenTexts:
    """Added tokens of `folder`'s tokenizer, from tokenizer.json or what stands in its place; empty without any."""
    config = read_optional_json(folder / "tokenizer_config.json")
    ids = _added_tokens(folder, config)
    eos = config.get("eos_token")
    if isinstance(eos, Mapping):
        eos = eos.get("content")
    return TokenTexts(folder, ids, eos if isinstance(eos, str) else None)


def resolve_special_ids(
    family: Family, config: ConfigJson, generation: ConfigJson, texts: TokenTexts, vocab_size: int
) -> SpecialIds:
    """Mask and stop ids of a checkpoint.

    config, generation    config.json and generation_config.json, each of which may name stop ids
    CheckpointError if two sources disagree, an id is outside the vocabulary, or the mask id would end a text.
    """
    mask_id = _mask_id(family, config, texts, vocab_size)
    stops = [
        *_read_ids(config, "eos_token_id", "config.json"),
        *_read_ids(generation, "eos_token_id", "generation_config.json"),
        *(token_id for stop in family.stops if (token_id := _stop_id(stop, texts, vocab_size)) is not None),
        *([texts.eos_id] if texts.eos_id is not None else []),
    ]
    stop_ids = tuple(dict.fromkeys(stops))
    for token_id in stop_ids:
        if not 0 <= token_id < vocab_size:
            raise CheckpointError(f"eos_token_id {token_id} is outside the vocabulary ({vocab_size})")
    if mask_id in stop_ids:
        raise CheckpointError(f"token id {mask_id} is the mask and also ends a text (eos_token_id)")
    return SpecialIds(mask_id, stop_ids)


def _mask_id(family: Family, config: ConfigJson, texts: TokenTexts, vocab_size: int) -> int:
    """The tokenizer's id of the mask's text, else config.json's, else the family's."""
    text = family.mask.text
    found: list[tuple[str, int]] = []
    if text in texts.ids:
        found.append((f"in the tokenizer of {texts.folder}", texts.ids[text]))
    found += [("in config.json (mask_token_id)", token_id) for token_id in _read_ids(config, "mask_token_id")[:1]]
    found += _published(family.mask, vocab_size)
    if not found:
        raise CheckpointError(
            f"no mask token: the tokenizer does not know {text!r}, config.json has no mask_token_id, and the usual id "
            f"{family.mask.token_id} is outside the vocabulary ({vocab_size})"
        )
    mask_id = _agreed(f"the mask token {text!r}", found)
    if not 0 <= mask_id < vocab_size:
        raise CheckpointError(f"mask_token_id {mask_id} is outside the vocabulary ({vocab_size})")
    return mask_id


def _stop_id(stop: SpecialToken, texts: TokenTexts, vocab_size: int) -> int | None:
    """The tokenizer's id of a stop's text; without any tokenizer the family's; None if there is no such token."""
    if stop.text in texts.ids:
        found = [(f"in the tokenizer of {texts.folder}", texts.ids[stop.text]), *_published(stop, vocab_size)]
        return _agreed(f"the stop token {stop.text!r}", found)
    published = _published(stop, vocab_size)
    return published[0][1] if published and not texts.ids else None


def _published(token: SpecialToken, vocab_size: int) -> list[tuple[str, int]]:
    """The family's id, where it can be meant: a smaller vocabulary is not the published one."""
    if token.token_id is None or token.token_id >= vocab_size:
        return []
    return [("in the family's table", token.token_id)]


def _agreed(what: str, found: list[tuple[str, int]]) -> int:
    first_place, first_id = found[0]
    for place, token_id in found[1:]:
        if token_id != first_id:
            raise CheckpointError(f"{what} has id {first_id} {first_place}, but {token_id} {place}")
    return first_id


def _read_ids(config: ConfigJson, key: str, file: str = "config.json") -> tuple[int, ...]:
    """One token id or a list of them; empty if the key is missing or null."""
    value = config.get(key)
    if value is None:
        return ()
    ids = value if isinstance(value, list) else [value]
    if not all(isinstance(item, int) and not isinstance(item, bool) for item in ids):
        raise CheckpointError(f"{file}: {key} must be a token id or a list of them, got {value!r}")
    return tuple(ids)


def _added_tokens(folder: Path, config: ConfigJson) -> Mapping[str, int]:
    """tokenizer.json's list, else the table of tokenizer_config.json, else added_tokens.json."""
    file = folder / "tokenizer.json"
    if file.exists():
        listed = read_json(file).get("added_tokens")
        entries = listed if isinstance(listed, list) else []
        return _texts(file, ((entry.get("content"), entry.get("id")) for entry in entries if isinstance(entry, dict)))
    table = config.get("added_tokens_decoder")
    if isinstance(table, dict):
        entries = [(value.get("content"), key) for key, value in table.items() if isinstance(value, dict)]
        return _texts(folder / "tokenizer_config.json", entries)
    return _texts(folder / "added_tokens.json", read_optional_json(folder / "added_tokens.json").items())


def _texts(file: Path, entries: Iterable[tuple[object, object]]) -> Mapping[str, int]:
    texts: dict[str, int] = {}
    for content, token_id in entries:
        if not isinstance(content, str) or not str(token_id).isdecimal():
            raise CheckpointError(f"{file}: an added token must have a text and an id, got {content!r}: {token_id!r}")
        texts[content] = int(str(token_id))
    return texts
