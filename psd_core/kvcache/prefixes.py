"""Which finished contexts are still in the key-value arena, so that a later request need not compute them again.

Only for causal models, where the keys and values of a block depend on nothing behind it: whole blocks, exact. For
context-causal ones, whose blocks begin anywhere, a block here is as many tokens, counted from the start of the text.
Pure bookkeeping. A reused prefix is copied to the slots of the request, so a kept context may be dropped at any time.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass

from psd_core.block import IntArray


@dataclass(frozen=True, slots=True)
class SlotCopy:
    """Keys and values of `length` slots to be copied before a forward."""

    source: int
    target: int
    length: int


@dataclass(frozen=True, slots=True)
class _Kept:
    digests: tuple[bytes, ...]  # of every whole-block prefix
    length: int


class PrefixCache:
    """Kept contexts by the slot they start at, least recently used first."""

    def __init__(self, block_length: int) -> None:
        self.num_slots = 0  # that kept contexts hold
        self._block_length = block_length
        self._kept: OrderedDict[int, _Kept] = OrderedDict()
        self._starts: dict[bytes, int] = {}  # digest of a prefix -> a kept context that begins with it

    def find(self, token_ids: IntArray, limit: int, salt: str = "") -> tuple[int, int]:
        """(first slot, length) of the longest prefix of `token_ids` kept under `salt`, at most `limit`; else (0, 0)."""
        found = (0, 0)
        for index, digest in enumerate(self._digests(token_ids[:limit], salt), 1):
            start = self._starts.get(digest)
            if start is None:
                break
            found = (start, index * self._block_length)
        if found[1]:
            self._kept.move_to_end(found[0])
        return found

    def keep(self, start: int, token_ids: IntArray, salt: str = "") -> bool:
        """Keep a context of whole blocks that lies at `start`; False if all of it is kept already."""
        digests = tuple(self._digests(token_ids, salt))
        if not digests or digests[-1] in self._starts:
            return False
        self._kept[start] = _Kept(digests, token_ids.size)
        self.num_slots += token_ids.size
        for digest in digests:
            self._starts[digest] = start
        return True

    def drop_oldest(self) -> int | None:
        """Forget the context that was not used for longest; its first slot, or None if nothing is kept."""
        if not self._kept:
            return None
        start, kept = self._kept.popitem(last=False)
        self.num_slots -= kept.length
        gone = {digest for digest in kept.digests if self._starts[digest] == start}
        for digest in gone:
            del self._starts[digest]
        for other_start, other in self._kept.items():  # a shared beginning may live on in another context
            for digest in gone.intersection(other.digests):
                self._starts[digest] = other_start
        return start

    def _digests(self, token_ids: IntArray, salt: str) -> list[bytes]:
        """One per whole block, each covering everything up to its end."""
        digests: list[bytes] = []
        running = hashlib.blake2b(hashlib.blake2b(salt.encode()).digest(), digest_size=16)
        for stop in range(self._block_length, token_ids.size + 1, self._block_length):
            running.update(token_ids[stop - self._block_length : stop].tobytes())
            digests.append(running.digest())
        return digests
