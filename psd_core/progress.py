"""How blocks fill up: positions decided by the policy and by drafts, per tenth of a block. Pure counting."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

NUM_DECILES: Final = 10


def _zeros() -> list[int]:
    return [0] * NUM_DECILES


@dataclass(slots=True)
class Progress:
    """Counts over all blocks of one sequence, which owns it.

    spatial    [decile] positions that the policy decided
    temporal   [decile] positions that an accepted draft, or a branch of `lopa`, decided
    The n-th of a block's m undecided positions to be decided, counted from 0, falls into decile 10 n // m.
    """

    spatial: list[int] = field(default_factory=_zeros)
    temporal: list[int] = field(default_factory=_zeros)

    def add(self, num_open: int, num_before: int, num_new: int, *, is_drafted: bool) -> None:
        """Count `num_new` positions of a block that had `num_open` open at first and `num_before` decided since."""
        counts = self.temporal if is_drafted else self.spatial
        for order in range(num_before, num_before + num_new):
            counts[NUM_DECILES * order // num_open] += 1
