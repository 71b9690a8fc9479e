"""A SentencePiece tokenizer, tokenizer.model, with the special tokens that tokenizer_config.json lists.

Text between two added tokens is encoded on its own, as the authors' class does, so each such run gets the space in
front that the model adds to a text. The library is an extra: only checkpoints without tokenizer.json need it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from psd_core.errors import CheckpointError
from server.tokenizer_files import read_added_tokens, read_json

CLASSES: Final = ("PanguTokenizer",)  # whose way of joining text and added tokens this is
SPACE: Final = "▁"  # how pieces write one
MANY_SPACES: Final = 1024
NORMALIZED_CHARS: Final = 4  # characters that normalization may make one of


class PieceCodec:
    """`server.codec.Codec` over SentencePiece."""

    adds_bos_to_chats = True  # the authors encode a rendered template as they do any text

    def __init__(self, folder: Path) -> None:
        """CheckpointError if the library is missing, the files are damaged or disagree, or the class is another."""
        config = read_json(folder / "tokenizer_config.json")
        if config.get("tokenizer_class") not in CLASSES:
            raise CheckpointError(
                f"{folder} has no tokenizer.json; tokenizer.model is understood for {', '.join(CLASSES)}, but "
                f"tokenizer_config.json says {config.get('tokenizer_class')!r}"
            )
        self._model = _open_model(folder / "tokenizer.model")
        self._num_pieces: int = self._model.get_piece_size()
        added = read_added_tokens(folder, config)
        self._check(folder, {token_id: token.content for token_id, token in added.items()})
        self.special_texts: Mapping[str, int] = {
            token.content: token_id for token_id, token in added.items() if token.special
        }
        texts = {token.content: token_id for token_id, token in added.items()}
        self._texts = {token_id: text for text, token_id in texts.items()}
        self._ids = texts
        self.known_ids = frozenset([*range(self._num_pieces), *self._texts])
        self._markup = _any_of(texts)
        self._plain = _any_of([text for text in texts if text not in self.special_texts])
        self._special_ids = frozenset(self.special_texts.values())
        self._anchor = self._find_anchor()
        self.max_token_chars = self._find_max_chars()

    def encode(self, text: str, *, parses_special: bool) -> list[int]:
        ids: list[int] = []
        end = 0
        for match in (self._markup if parses_special else self._plain).finditer(text):
            ids += self._encode_run(text[end : match.start()])
            ids.append(self._ids[match[0]])
            end = match.end()
        return ids + self._encode_run(text[end:])

    def decode(self, ids: Sequence[int], *, skip_special: bool) -> str:
        parts = []
        for run, added in self._runs(ids):
            parts.append(self._model.decode(run) if run else "")
            if added is not None and not (skip_special and added in self._special_ids):
                parts.append(self._texts[added])
        return "".join(parts)

    def decode_part(self, ids: Sequence[int]) -> str:
        parts = []
        for index, (run, added) in enumerate(self._runs(ids)):
            # Behind a special token a run has the space that encoding put there.
            parts.append((self._decode_within(run) if index == 0 else self._model.decode(run)) if run else "")
            parts.append("" if added is None else self._texts[added])
        return "".join(parts)

    def token_to_id(self, text: str) -> int | None:
        if text in self._ids:
            return self._ids[text]
        token_id: int = self._model.piece_to_id(text)
        return token_id if self._model.id_to_piece(token_id) == text else None

    def begins_with(self, bos_id: int) -> bool:
        return False  # what the library puts in front, tokenizer_config.json says

    def _encode_run(self, text: str) -> list[int]:
        """Text without added tokens. The model may know some of their texts itself: here they are spelled out."""
        ids: list[int] = []
        for token_id in self._model.encode(text) if text else ():
            ids += self._spell(self._texts[token_id]) if token_id in self._special_ids else [token_id]
        return ids

    def _spell(self, text: str) -> Iterator[int]:
        """Ids of the characters of `text`, one by one: pieces, else bytes, else what is unknown."""
        for char in text:
            token_id = self._model.piece_to_id(char)
            if token_id != self._model.unk_id():
                yield token_id
                continue
            yield from (self._model.piece_to_id(f"<0x{byte:02X}>") for byte in char.encode())

    def _runs(self, ids: Sequence[int]) -> Iterator[tuple[list[int], int | None]]:
        """(pieces, the added token behind them or None at the end)."""
        run: list[int] = []
        for token_id in ids:
            if token_id in self._texts:
                yield run, token_id
                run = []
            elif 0 <= token_id < self._num_pieces:
                run.append(token_id)
        if run:
            yield run, None

    def _decode_within(self, run: list[int]) -> str:
        text: str = self._model.decode([*self._anchor, *run])
        return text[len(self._model.decode(self._anchor)) :]

    def _find_anchor(self) -> list[int]:
        """A piece of plain letters, behind which nothing is at the start of a text; none if there is no such piece."""
        for token_id in range(self._num_pieces):
            piece = self._model.id_to_piece(token_id)
            if piece.isascii() and piece.isalpha() and token_id not in self._texts:
                return [token_id]
        return []

    def _find_max_chars(self) -> int:
        """Unbounded if many spaces become one."""
        longest = max((len(self._model.id_to_piece(token_id)) for token_id in range(self._num_pieces)), default=1)
        if len(self._model.encode("a" + " " * MANY_SPACES + "a")) * longest < MANY_SPACES:
            return sys.maxsize
        return NORMALIZED_CHARS * longest

    def _check(self, folder: Path, added: Mapping[int, str]) -> None:
        for token_id, text in added.items():
            if token_id < self._num_pieces and self._model.id_to_piece(token_id) != text:
                raise CheckpointError(
                    f"{folder}: the added token {text!r} should have id {token_id}, but in tokenizer.model that is "
                    f"{self._model.id_to_piece(token_id)!r}"
                )


def _any_of(texts: Sequence[str] | Mapping[str, int]) -> re.Pattern[str]:
    """Matches any of the texts, the longest first; nothing if there are none."""
    return re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))) or r"(?!)")


def _open_model(path: Path) -> Any:  # the library has no types
    try:
        import sentencepiece  # an extra
    except ImportError:
        raise CheckpointError(
            f"{path.parent} has no tokenizer.json, and reading {path.name} needs the package sentencepiece: "
            "pip install sentencepiece, or put a tokenizer.json made from it beside it"
        ) from None
    model = sentencepiece.SentencePieceProcessor()
    try:
        model.LoadFromSerializedProto(path.read_bytes())
    except (OSError, RuntimeError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    return model
