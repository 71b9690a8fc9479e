"""Policies that look at the whole distribution of a position, not only at its best token."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from psd_core.block import BlockState, Candidates, IntArray, rank
from psd_core.policies.base import Statistic


@dataclass(frozen=True, slots=True)
class Entropy:
    """EB-Sampler (arXiv 2505.24857): by rising entropy, the largest set with sum H - max H <= gamma; at least one.

    The left side bounds the dependence that is lost by deciding the set at once.
    """

    gamma: float

    @property
    def statistics(self) -> frozenset[Statistic]:
        return frozenset({"entropy"})

    def rank(self, state: BlockState, candidates: Candidates) -> IntArray:
        assert candidates.entropy is not None
        return rank(state, -candidates.entropy)

    def select(self, state: BlockState, candidates: Candidates) -> IntArray:
        assert candidates.entropy is not None
        ranked = self.rank(state, candidates)
        entropy = candidates.entropy[ranked].astype(np.float64)
        # In rising order the largest entropy of each prefix is its last one.
        bound = np.cumsum(entropy) - entropy
        return ranked[: max(1, int(np.searchsorted(bound, self.gamma, side="right")))]


@dataclass(frozen=True, slots=True)
class Margin:
    """All positions whose best token leads the second best by >= `threshold`; the clearest one always."""

    threshold: float

    @property
    def statistics(self) -> frozenset[Statistic]:
        return frozenset({"margin"})

    def rank(self, state: BlockState, candidates: Candidates) -> IntArray:
        assert candidates.margin is not None
        return rank(state, candidates.margin)

    def select(self, state: BlockState, candidates: Candidates) -> IntArray:
        assert candidates.margin is not None
        ranked = self.rank(state, candidates)
        return ranked[: max(1, int(np.count_nonzero(candidates.margin[ranked] >= self.threshold)))]
