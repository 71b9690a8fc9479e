"""What the server needs of a tokenizer's library, and which library reads the files of a folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from server.pieces import PieceCodec
from server.tokenizer_files import open_tokenizer


class Codec(Protocol):
    """One vocabulary. Immutable after construction; safe to call from several threads.

    special_texts     text of each special token -> its id
    known_ids         ids that stand for a token
    max_token_chars   n tokens can never hold more than n times as many characters
    adds_bos_to_chats whether rendered chat templates get the BOS in front that other text gets
    """

    special_texts: Mapping[str, int]
    known_ids: frozenset[int]
    max_token_chars: int
    adds_bos_to_chats: bool

    def encode(self, text: str, *, parses_special: bool) -> list[int]:
        """Text to ids, nothing added. A special token's text is one unless `parses_special` is false."""
        ...

    def decode(self, ids: Sequence[int], *, skip_special: bool) -> str:
        """A whole text; bytes that are not UTF-8 become U+FFFD, unknown ids nothing."""
        ...

    def decode_part(self, ids: Sequence[int]) -> str:
        """A part of a text, special tokens included: what the library drops at the start of a text is kept."""
        ...

    def token_to_id(self, text: str) -> int | None:
        """Id of the token that is written so."""
        ...

    def begins_with(self, bos_id: int) -> bool:
        """Whether the library itself puts that token in front of a text."""
        ...


class RustCodec:
    """A tokenizer of the `tokenizers` library, loaded twice: one finds special tokens in a text, the other does not."""

    adds_bos_to_chats = False

    def __init__(self, folder: Path) -> None:
        """CheckpointError if the files cannot be read."""
        self._markup, self._plain = open_tokenizer(folder), open_tokenizer(folder)
        for tokenizer in (self._markup, self._plain):
            tokenizer.no_truncation()
            tokenizer.no_padding()
        self._plain.encode_special_tokens = True
        added = self._markup.get_added_tokens_decoder()
        self.special_texts: Mapping[str, int] = {
            token.content: token_id for token_id, token in added.items() if token.special
        }
        vocabulary = self._markup.get_vocab(with_added_tokens=True)
        self.known_ids = frozenset(vocabulary.values())
        self.max_token_chars = max(map(len, vocabulary), default=1)

    def encode(self, text: str, *, parses_special: bool) -> list[int]:
        tokenizer = self._markup if parses_special else self._plain
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Sequence[int], *, skip_special: bool) -> str:
        text: str = self._markup.decode(list(ids), skip_special_tokens=skip_special)
        return text

    def decode_part(self, ids: Sequence[int]) -> str:
        return self.decode(ids, skip_special=False)

    def token_to_id(self, text: str) -> int | None:
        token_id: int | None = self._markup.token_to_id(text)
        return token_id

    def begins_with(self, bos_id: int) -> bool:
        ids: list[int] = self._markup.encode("a", add_special_tokens=True).ids
        return ids[:1] == [bos_id]


def open_codec(folder: Path) -> Codec:
    """The tokenizer in `folder`: its JSON files, else its tokenizer.model. CheckpointError says what is in the way."""
    has_json = (folder / "tokenizer.json").exists() or (folder / "vocab.json").exists()
    return PieceCodec(folder) if (folder / "tokenizer.model").exists() and not has_json else RustCodec(folder)
