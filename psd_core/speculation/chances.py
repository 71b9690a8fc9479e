"""How probable it is that a draft holds, as measured: by its depth and by the confidence of its weakest token. Pure.

A draft *holds* if the accepted path passes through it. Under `exact` that is known for every draft that was offered,
whatever else was offered beside it: a state leads to one next state, and a draft either is that state or is not.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from psd_core.block import FloatArray, IntArray
from psd_core.config import MAX_AUTO_DEPTH

CONFIDENCE_EDGES: Final = (0.3, 0.5, 0.7, 0.8, 0.9)  # of the kinds of draft that are counted apart
NUM_KINDS: Final = len(CONFIDENCE_EDGES) + 1
MEMORY: Final = 0.998  # weight of an observation per later one: the last few hundred steps count
FIRST_GUESS: Final = 0.4  # of the first draft, before anything was measured; each further one is less probable by
FIRST_DECAY: Final = 0.6
GUESS_WEIGHT: Final = (
    4.0  # observations that the guess is worth, and what a depth's mean is worth for each of its kinds
)
REQUEST_WEIGHT: Final = 4.0  # held drafts that "this request is like the others" is worth
MAX_REQUEST_FACTOR: Final = 3.0


def _counts() -> FloatArray:
    return np.zeros((MAX_AUTO_DEPTH, NUM_KINDS), np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class Chances:
    """Counts over all requests of one decoder, the older the lighter."""

    offered: FloatArray = field(default_factory=_counts)  # [D, K] by depth - 1 and kind
    held: FloatArray = field(default_factory=_counts)  # [D, K]

    def estimate(self, weakest: FloatArray) -> FloatArray:
        """Probability of each of n drafts to hold, [n], from its row and the confidence of its weakest token ([n])."""
        depth = np.arange(weakest.size)
        guess = FIRST_GUESS * FIRST_DECAY**depth
        offered, held = self.offered[: weakest.size], self.held[: weakest.size]
        mean = (held.sum(axis=1) + GUESS_WEIGHT * guess) / (offered.sum(axis=1) + GUESS_WEIGHT)
        kind = _kinds(weakest)
        found = (held[depth, kind] + GUESS_WEIGHT * mean) / (offered[depth, kind] + GUESS_WEIGHT)
        result: FloatArray = found.astype(np.float32)
        return result

    def observe(self, weakest: FloatArray, path: Iterable[int]) -> Chances:
        """These counts after n drafts ([n]: the confidence of each one's weakest token) were offered.

        path   accepted rows; row d is draft d: of that depth in a chain, the d-th of sets
        """
        depth, kind = np.arange(weakest.size), _kinds(weakest)
        offered, held = self.offered * MEMORY, self.held * MEMORY
        offered[depth, kind] += 1
        reached = np.asarray([row - 1 for row in path if 0 < row <= weakest.size], np.int64)
        held[reached, kind[reached]] += 1
        return replace(self, offered=offered, held=held)


@dataclass(frozen=True, slots=True)
class Luck:
    """How much more often one request's drafts held than those of others like it would have."""

    held: float = 0.0
    expected: float = 0.0

    @property
    def factor(self) -> float:
        """Multiplies a chance; 1 for a request of which nothing is known."""
        ratio = (self.held + REQUEST_WEIGHT) / (self.expected + REQUEST_WEIGHT)
        return min(max(ratio, 1 / MAX_REQUEST_FACTOR), MAX_REQUEST_FACTOR)

    def observe(self, num_held: int, num_expected: float) -> Luck:
        return Luck(self.held + num_held, self.expected + num_expected)


def _kinds(weakest: FloatArray) -> IntArray:
    return np.searchsorted(CONFIDENCE_EDGES, weakest, side="right")
