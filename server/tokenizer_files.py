"""A tokenizer from the files of a checkpoint: tokenizer.json, or vocab.json and merges.txt. Runs no code of theirs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE

from psd_core.errors import CheckpointError

# Classes whose vocab.json and merges.txt mean Qwen2's byte-level BPE (Dream's differs from it in special tokens only).
QWEN2_CLASSES: Final = ("DreamTokenizer", "Qwen2Tokenizer", "Qwen2TokenizerFast")
# Contractions, letters with one sign before them, single digits, runs of signs, line ends, other white space.
QWEN2_WORDS: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def open_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer in `folder`. CheckpointError if there is none, it is damaged, or it is of an unknown class."""
    path = folder / "tokenizer.json"
    if path.exists():
        try:
            return Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception
            raise CheckpointError(f"{path} cannot be read: {error}") from error
    vocabulary, merges = folder / "vocab.json", folder / "merges.txt"
    if not vocabulary.exists() or not merges.exists():
        raise CheckpointError(
            f"{folder} has no tokenizer: neither tokenizer.json nor vocab.json with merges.txt nor tokenizer.model"
        )
    return _open_qwen2(folder, vocabulary, merges)


def read_json(path: Path) -> Mapping[str, object]:
    """The object in `path`; empty if there is no such file. CheckpointError if it holds something else."""
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} must hold a JSON object")
    return content


def _open_qwen2(folder: Path, vocabulary: Path, merges: Path) -> Tokenizer:
    config = read_json(folder / "tokenizer_config.json")
    name = config.get("tokenizer_class")
    if name not in QWEN2_CLASSES:
        raise CheckpointError(
            f"{folder} has no tokenizer.json; vocab.json and merges.txt are understood for {', '.join(QWEN2_CLASSES)}, "
            f"but tokenizer_config.json says {name!r}"
        )
    try:
        tokenizer = Tokenizer(BPE.from_file(str(vocabulary), str(merges)))
    except Exception as error:  # as above
        raise CheckpointError(f"{vocabulary} and {merges.name} cannot be read: {error}") from error
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN2_WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    for token_id, token in sorted(read_added_tokens(folder, config).items()):
        (tokenizer.add_special_tokens if token.special else tokenizer.add_tokens)([token])
        if tokenizer.token_to_id(token.content) != token_id:
            raise CheckpointError(
                f"{folder}: the added token {token.content!r} should have id {token_id}, but the tokenizer gives it "
                f"{tokenizer.token_to_id(token.content)}"
            )
    return tokenizer


def read_added_tokens(folder: Path, config: Mapping[str, object]) -> dict[int, AddedToken]:
    """Added tokens by id, from tokenizer_config.json, else from added_tokens.json, where all count as special.

    CheckpointError for an entry without a text or an id.
    """
    table = config.get("added_tokens_decoder")
    if isinstance(table, dict):
        file = folder / "tokenizer_config.json"
        return {_token_id(file, token_id): _added_token(file, entry) for token_id, entry in table.items()}
    file = folder / "added_tokens.json"
    plain = {"special": True, "normalized": False}
    return {
        _token_id(file, token_id): _added_token(file, {"content": text} | plain)
        for text, token_id in read_json(file).items()
    }


def _token_id(file: Path, given: object) -> int:
    if not str(given).isdecimal():
        raise CheckpointError(f"{file}: the id of an added token must be a number, got {given!r}")
    return int(str(given))


def _added_token(file: Path, entry: object) -> AddedToken:
    text = entry.get("content") if isinstance(entry, Mapping) else None
    if not isinstance(entry, Mapping) or not isinstance(text, str) or not text:
        raise CheckpointError(f"{file}: an added token must be an object with a text as content, got {entry!r}")

    def flag(name: str) -> bool:
        return entry.get(name) is True

    return AddedToken(
        text,
        special=flag("special"),
        normalized=flag("normalized"),
        lstrip=flag("lstrip"),
        rstrip=flag("rstrip"),
        single_word=flag("single_word"),
    )
