"""Which replica has which beginnings of prompts in its cache, as far as can be told from here.

Only block-causal models can reuse a beginning. A replica keeps a request's context when the request ends, so what it
has is what ended there; what it gave up since is not known here, and costs a computation, nothing else.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

LEAST_STEP: Final = 64  # tokens; a shorter common beginning is soon computed, and hashing costs time on the event loop

Outcome = Literal["followed", "overruled", "unknown"]
OUTCOMES: Final[tuple[Outcome, ...]] = ("followed", "overruled", "unknown")


@dataclass(frozen=True, slots=True)
class Choice:
    """A replica, by its index, and what the beginning of the prompt had to do with it.

    followed     it has the longest known beginning
    overruled    another one has, but that one is too busy
    unknown      nobody has a beginning that is known
    """

    index: int
    outcome: Outcome


class Affinity:
    """Known beginnings of every replica, the least recently used forgotten first."""

    def __init__(self, block_length: int, max_cache_tokens: int, max_num_seqs: int) -> None:
        """max_cache_tokens: what a replica can keep. max_num_seqs: sequences that it runs at once."""
        self.max_lead = max(1, max_num_seqs // 8)  # sequences that affinity may cost over the least busy replica
        self._step = -(-LEAST_STEP // block_length) * block_length
        self._max_known = max(1, max_cache_tokens // self._step)
        self._known: dict[int, OrderedDict[bytes, None]] = {}

    def choose(self, prompt_ids: Sequence[int], loads: Mapping[int, int], salt: str = "") -> Choice:
        """The replica for a prompt.

        loads: open requests of each that is ready, by index; there is at least one. salt: what keeps caches apart.
        """
        least = min(loads, key=lambda index: (loads[index], index))
        lengths = dict.fromkeys(loads, 0)
        for number, digest in enumerate(self._digests(prompt_ids, salt), 1):
            holders = [index for index in loads if digest in self._known.get(index, ())]
            if not holders:
                break
            lengths |= dict.fromkeys(holders, number)
        best = min(loads, key=lambda index: (-lengths[index], loads[index], index))
        if not lengths[best]:
            return Choice(least, "unknown")
        if loads[best] - loads[least] > self.max_lead:
            return Choice(least, "overruled")
        return Choice(best, "followed")

    def keep(self, index: int, prompt_ids: Sequence[int], salt: str = "") -> None:
        """A request with this prompt ended on a replica, whose cache now has it."""
        known = self._known.setdefault(index, OrderedDict())
        for digest in reversed(self._digests(prompt_ids, salt)):  # the longest is forgotten first
            known[digest] = None
            known.move_to_end(digest)
        while len(known) > self._max_known:
            known.popitem(last=False)

    def forget(self, index: int) -> None:
        """The replica died, and its cache with it."""
        self._known.pop(index, None)

    def _digests(self, prompt_ids: Sequence[int], salt: str) -> list[bytes]:
        """One per whole step, each of everything up to its end; the same in every process."""
        running = hashlib.blake2b(hashlib.blake2b(salt.encode()).digest(), digest_size=16)
        digests = []
        for stop in range(self._step, len(prompt_ids) + 1, self._step):
            running.update(array("q", prompt_ids[stop - self._step : stop]).tobytes())
            digests.append(running.digest())
        return digests
