"""Bookkeeping of the key-value arena: which slots belong to whom. No tensors.

A diffusion model's context length is known when a request is admitted, so each request gets one contiguous range
for its whole life: attention reads it as a view, without gathers, and a running request can never run out.
"""

from __future__ import annotations


class SlotAllocator:
    """First-fit allocation of contiguous ranges out of `num_slots` slots."""

    def __init__(self, num_slots: int) -> None:
        assert num_slots >= 0
        self.num_slots = num_slots
        self._free: list[tuple[int, int]] = [(0, num_slots)] if num_slots else []  # (start, length), by start
        self._used: dict[int, int] = {}  # start -> length

    @property
    def num_used(self) -> int:
        return sum(self._used.values())

    def allocate(self, length: int) -> int | None:
        """Start of a range of `length` >= 1 slots, or None if no gap is wide enough now."""
        assert length >= 1
        for index, (start, gap) in enumerate(self._free):
            if gap >= length:
                if gap == length:
                    del self._free[index]
                else:
                    self._free[index] = (start + length, gap - length)
                self._used[start] = length
                return start
        return None

    def shrink(self, start: int, length: int) -> None:
        """Give back the end of the range that begins at `start`, so that `length` >= 1 slots of it remain."""
        rest = self._used[start] - length
        assert length >= 1
        assert rest >= 0
        if rest:
            self._used[start] = length
            self._used[start + length] = rest
            self.free(start + length)

    def free(self, start: int) -> None:
        """Give back the range that begins at `start`; neighbouring gaps merge."""
        length = self._used.pop(start)
        index = next((i for i, gap in enumerate(self._free) if gap[0] > start), len(self._free))
        self._free.insert(index, (start, length))
        for left in (index, index - 1):
            if 0 <= left < len(self._free) - 1:
                (a, a_length), (b, b_length) = self._free[left], self._free[left + 1]
                if a + a_length == b:
                    self._free[left : left + 2] = [(a, a_length + b_length)]

    def check_integrity(self) -> None:
        """Assert that used and free ranges tile the arena exactly."""
        end = 0
        for start, length in sorted([*self._free, *self._used.items()]):
            assert start == end, f"slots {end} to {start} are lost"
            assert length > 0
            end = start + length
        assert end == self.num_slots, f"slots {end} to {self.num_slots} are lost"
