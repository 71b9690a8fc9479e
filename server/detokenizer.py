"""Incremental decoding: token by token, never half a character, and the pieces joined are the whole text.

A byte-level token may hold a part of a character. Such tokens are held until the character is complete; what is
still incomplete at the end comes out of `flush` as U+FFFD. A few finished tokens are kept as context, because
some tokenizers decode a token differently at the start of a text.
"""

from __future__ import annotations

from server.tokenizer import Tokenizer

_REPLACEMENT = "�"


class Detokenizer:
    """The text of one growing sequence of tokens. One owner; not thread-safe."""

    def __init__(
        self, tokenizer: Tokenizer, *, skip_special: bool = True, kept_ids: frozenset[int] = frozenset()
    ) -> None:
        """kept_ids: special tokens that are text even if special ones are skipped."""
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_ids - kept_ids if skip_special else frozenset()
        self._context: list[int] = []  # the last finished group of tokens
        self._held: list[int] = []  # tokens whose text is not out yet

    def push(self, token_id: int) -> str:
        """Text that the token completes; empty while a character is incomplete."""
        if token_id in self._skipped:
            if not self._held:
                self._context = [token_id]  # what follows it may be written differently
            return ""
        self._held.append(token_id)
        text = self._held_text()
        if text.endswith(_REPLACEMENT):
            return ""
        self._context, self._held = self._held, []
        return text

    def flush(self) -> str:
        """The rest; an incomplete character becomes U+FFFD."""
        text = self._held_text() if self._held else ""
        self._context, self._held = self._held or self._context, []
        return text

    def _held_text(self) -> str:
        known = self._decode(self._context)
        return self._decode([*self._context, *self._held])[len(known) :]

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode_part(ids) if ids else ""
