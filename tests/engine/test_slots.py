"""Slots of the key-value arena: never shared, never lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from psd_core.kvcache.slots import SlotAllocator


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 12)), max_size=60))
def test_ranges_never_overlap_and_gaps_merge(actions: list[tuple[bool, int]]) -> None:
    allocator = SlotAllocator(40)
    held: dict[int, int] = {}
    for takes, size in actions:
        if takes:
            start = allocator.allocate(size)
            if start is not None:
                assert all(start + size <= other or other + length <= start for other, length in held.items())
                held[start] = size
        elif held:
            start = sorted(held)[size % len(held)]
            allocator.free(start)
            del held[start]
        allocator.check_integrity()
        assert allocator.num_used == sum(held.values())
    for start in list(held):
        allocator.free(start)
    assert allocator.allocate(40) == 0, "an empty arena is one gap"
