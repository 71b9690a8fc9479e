"""Text to token ids and back, with the `tokenizers` library: no code of a checkpoint is run.

Two views of one vocabulary. `encode_text` is for what users wrote: a literal "<|mask|>" in it is ordinary text.
`encode_markup` is for what a chat template wrote: there special tokens count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from server.tokenizer_files import open_tokenizer, read_json

Json = Mapping[str, object]


class Tokenizer:
    """A loaded tokenizer. Immutable after construction; safe to call from several threads."""

    def __init__(self, folder: Path) -> None:
        """Read the tokenizer's files and configuration in `folder`. CheckpointError if that fails."""
        self._markup = open_tokenizer(folder)
        self._plain = open_tokenizer(folder)
        for tokenizer in (self._markup, self._plain):
            tokenizer.no_truncation()
            tokenizer.no_padding()
        self._plain.encode_special_tokens = True
        self.config: Json = read_json(folder / "tokenizer_config.json")
        added = self._markup.get_added_tokens_decoder()
        self.special_texts = {token.content: token_id for token_id, token in added.items() if token.special}
        self.special_ids = frozenset(self.special_texts.values())
        self.vocab_size = self._markup.get_vocab_size(with_added_tokens=True)
        vocabulary = self._markup.get_vocab(with_added_tokens=True)
        self._max_token_chars = max(map(len, vocabulary), default=1)
        self._prefix_ids = self._find_prefix()
        self.end_ids = self._find_ends(read_json(folder / "generation_config.json").get("eos_token_id"))

    @property
    def max_token_chars(self) -> int:
        """Characters of the longest token: n tokens can never hold more than n times as many."""
        return self._max_token_chars

    def special_text(self, key: str) -> str | None:
        """Text of a special token that the config names, like bos_token; it may be a string or an object."""
        value = self.config.get(key)
        if isinstance(value, Mapping):
            value = value.get("content")
        return value if isinstance(value, str) else None

    def encode_text(self, text: str, *, with_prefix: bool = True, parses_special: bool = False) -> list[int]:
        """User text to ids; BOS first if the tokenizer asks for it. No special token is recognised unless asked for."""
        tokenizer = self._markup if parses_special else self._plain
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return [*self._prefix_ids, *ids] if with_prefix else ids

    def encode_markup(self, text: str) -> list[int]:
        """A rendered template to ids: special tokens are recognised and nothing is added."""
        ids: list[int] = self._markup.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Ids to text; bytes that are not UTF-8 become U+FFFD."""
        text: str = self._markup.decode(list(ids), skip_special_tokens=skip_special)
        return text

    def _special_id(self, key: str) -> int | None:
        text = self.special_text(key)
        return None if text is None else self._markup.token_to_id(text)

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
        if wanted is not True and self._markup.encode("a", add_special_tokens=True).ids[:1] != [bos_id]:
            return []
        return [bos_id]
