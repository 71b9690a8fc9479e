"""Text to token ids and back: no code of a checkpoint is run.

Two views of one vocabulary. `encode_text` is for what users wrote: a literal "<|mask|>" in it is ordinary text.
`encode_markup` is for what a chat template wrote: there special tokens count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from server.codec import open_codec
from server.tokenizer_files import read_json

Json = Mapping[str, object]


class Tokenizer:
    """A loaded tokenizer. Immutable after construction; safe to call from several threads."""

    def __init__(self, folder: Path) -> None:
        """Read the tokenizer's files and configuration in `folder`. CheckpointError if that fails."""
        self._codec = open_codec(folder)
        self.config: Json = read_json(folder / "tokenizer_config.json")
        self.special_texts = self._codec.special_texts
        self.special_ids = frozenset(self.special_texts.values())
        self.known_ids = self._codec.known_ids
        self.vocab_size = len(self.known_ids)
        self._prefix_ids = self._find_prefix()
        self.end_ids = self._find_ends(read_json(folder / "generation_config.json").get("eos_token_id"))

    @property
    def max_token_chars(self) -> int:
        """Characters of the longest token: n tokens can never hold more than n times as many."""
        return self._codec.max_token_chars

    def special_text(self, key: str) -> str | None:
        """Text of a special token that the config names, like bos_token; it may be a string or an object."""
        value = self.config.get(key)
        if isinstance(value, Mapping):
            value = value.get("content")
        return value if isinstance(value, str) else None

    def encode_text(self, text: str, *, with_prefix: bool = True, parses_special: bool = False) -> list[int]:
        """User text to ids; BOS first if the tokenizer asks for it. No special token is recognised unless asked for."""
        ids = self._codec.encode(text, parses_special=parses_special)
        return [*self._prefix_ids, *ids] if with_prefix else ids

    def encode_markup(self, text: str) -> list[int]:
        """A rendered template to ids: special tokens are recognised and nothing is added."""
        return self._codec.encode(text, parses_special=True)

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Ids to text; bytes that are not UTF-8 become U+FFFD."""
        return self._codec.decode(ids, skip_special=skip_special)

    def decode_part(self, ids: Sequence[int]) -> str:
        """Ids from the middle of a text, or one token on its own; special tokens are shown."""
        return self._codec.decode_part(ids)

    @property
    def chat_prefix_ids(self) -> Sequence[int]:
        """What stands in front of a rendered chat template that does not begin with it itself."""
        return self._prefix_ids if self._codec.adds_bos_to_chats else ()

    def _special_id(self, key: str) -> int | None:
        text = self.special_text(key)
        return None if text is None else self._codec.token_to_id(text)

    def _find_ends(self, configured: object) -> frozenset[int]:
        """Ids that end a text: the tokenizer's EOS and those of the generation config."""
        eos_id = self._special_id("eos_token")
        given = configured if isinstance(configured, list) else [configured]
        return frozenset(token_id for token_id in [eos_id, *given] if isinstance(token_id, int))

    def _find_prefix(self) -> list[int]:
        """BOS if the config says add_bos_token, or, where it says nothing, if the post-processor adds it."""
        bos_id = self._special_id("bos_token")
        wanted = self.config.get("add_bos_token")
        if bos_id is None or wanted is False:
            return []
        if wanted is not True and not self._codec.begins_with(bos_id):
            return []
        return [bos_id]
