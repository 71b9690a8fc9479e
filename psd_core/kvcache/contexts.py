"""Where contexts lie in the key-value arena: those of running sequences, and finished ones kept for later requests."""

from __future__ import annotations

from dataclasses import dataclass

from psd_core.admission import num_slots
from psd_core.kvcache.prefixes import PrefixCache, SlotCopy
from psd_core.kvcache.slots import SlotAllocator
from psd_core.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Place:
    """A range of slots for one sequence."""

    start: int
    num_reused: int  # leading positions that an earlier request has computed; they are copied before the next forward


class Contexts:
    """Hands ranges of slots to sequences and takes them back. Changes no sequence."""

    def __init__(self, num_arena_slots: int, kept_block_length: int | None, is_shifted: bool) -> None:
        """kept_block_length: finished contexts are kept in whole blocks of so many tokens; None: they are not kept."""
        self._slots = SlotAllocator(num_arena_slots)
        self._prefixes = None if kept_block_length is None else PrefixCache(kept_block_length)
        self._is_shifted = is_shifted
        self._copies: list[SlotCopy] = []

    @property
    def num_kept(self) -> int:
        """Slots of contexts that are kept."""
        return self._prefixes.num_slots if self._prefixes else 0

    @property
    def used_ratio(self) -> float:
        """Share of the arena that running sequences hold."""
        total = self._slots.num_slots
        return (self._slots.num_used - self.num_kept) / total if total else 0.0

    def place(self, sequence: Sequence, wanted: int) -> Place | None:
        """A range of `wanted` slots, with what can be reused in front; None if there is none free now."""
        source, length = self._find(sequence)
        start = self._allocate(wanted)
        if start is None:
            return None
        # Making room may have cost the prefix itself, though it was the last to go.
        if not length or self._find(sequence) != (source, length):
            return Place(start, 0)
        self._copies.append(SlotCopy(source, start, length))
        return Place(start, length)

    def release(self, sequence: Sequence, start: int) -> None:
        """Take slots back, but for the finished blocks that a later request may begin with."""
        whole = sequence.num_cached - sequence.num_cached % sequence.block_length
        salt = sequence.request.cache_salt
        if self._prefixes is not None and self._prefixes.keep(start, sequence.token_ids[:whole], salt):
            self._slots.shrink(start, whole)
        else:
            self._slots.free(start)

    def take_copies(self) -> list[SlotCopy]:
        """What must be copied, in this order and once, before the next forward."""
        copies, self._copies = self._copies, []
        return copies

    def check_integrity(self, running: list[Sequence]) -> None:
        """Assert that exactly these sequences and what is kept hold slots, and that none is lost."""
        self._slots.check_integrity()
        held = sum(num_slots(sequence.request, sequence.has_grid) for sequence in running) + self.num_kept
        assert held == self._slots.num_used, f"{self._slots.num_used} slots in use, {held} accounted for"

    def _find(self, sequence: Sequence) -> tuple[int, int]:
        """(first slot, length) of what an earlier request left of this one's prompt."""
        if self._prefixes is None or sequence.request.decoder.cache != "causal" or sequence.is_scoring:
            return 0, 0  # scoring computes every token of the prompt, and writes over what is kept behind
        # A shifted model reads the first new token off the last prompt token, which must then be computed.
        limit = sequence.num_prompt - int(self._is_shifted)
        return self._prefixes.find(sequence.token_ids, limit, sequence.request.cache_salt)

    def _allocate(self, wanted: int) -> int | None:
        """First slot of a free range; kept contexts make way, the least recently used first."""
        while (start := self._slots.allocate(wanted)) is None:
            oldest = self._prefixes.drop_oldest() if self._prefixes else None
            if oldest is None:
                return None
            self._slots.free(oldest)
        return start
