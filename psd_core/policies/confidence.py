"""Policies that rank positions by the confidence of their candidate."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from psd_core.block import BlockState, Candidates, IntArray
from psd_core.policies.base import Statistic


@dataclass(frozen=True, slots=True)
class _ByConfidence:
    """What these policies share: no further statistics, and the order of confidence."""

    @property
    def statistics(self) -> frozenset[Statistic]:
        return frozenset()

    def rank(self, state: BlockState, candidates: Candidates) -> IntArray:
        return candidates.ranked(state)


@dataclass(frozen=True, slots=True)
class Greedy(_ByConfidence):
    """The single most confident position: LLaDA's loop with as many steps as tokens (arXiv 2502.09992)."""

    def select(self, state: BlockState, candidates: Candidates) -> IntArray:
        return self.rank(state, candidates)[:1]


@dataclass(frozen=True, slots=True)
class TopK(_ByConfidence):
    """The `k` most confident positions: LLaDA's loop with fewer steps than tokens."""

    k: int

    def select(self, state: BlockState, candidates: Candidates) -> IntArray:
        return self.rank(state, candidates)[: self.k]


@dataclass(frozen=True, slots=True)
class Threshold(_ByConfidence):
    """All positions with confidence >= `threshold`, the most confident one always (Fast-dLLM, arXiv 2505.22618)."""

    threshold: float

    def select(self, state: BlockState, candidates: Candidates) -> IntArray:
        ranked = self.rank(state, candidates)
        return ranked[: max(1, int(np.count_nonzero(candidates.confidence[ranked] >= self.threshold)))]


@dataclass(frozen=True, slots=True)
class Factor(_ByConfidence):
    """The longest prefix of the ranking whose n-th confidence is at least 1 - factor / (n + 1); at least one.

    The more positions are decided together, the more certain each must be (Fast-dLLM, arXiv 2505.22618, section 3.3).
    """

    factor: float

    def select(self, state: BlockState, candidates: Candidates) -> IntArray:
        ranked = self.rank(state, candidates)
        count = np.arange(1, ranked.size + 1)
        fails = candidates.confidence[ranked] < 1.0 - self.factor / (count + 1)
        fails[0] = False
        return ranked[: int(np.argmax(fails))] if fails.any() else ranked


@dataclass(frozen=True, slots=True)
class LocalLeap(_ByConfidence):
    """Positions within `window` of a certain one need only the relaxed threshold (LocalLeap, arXiv 2510.07081).

    Anchors are undecided positions with confidence >= `threshold`; the most confident position is always decided.
    """

    threshold: float
    relaxed_threshold: float
    window: int

    def select(self, state: BlockState, candidates: Candidates) -> IntArray:
        ranked = self.rank(state, candidates)
        confidence = candidates.confidence
        anchors = ranked[confidence[ranked] >= self.threshold]
        near = np.zeros(state.decided.size, np.bool_)
        for anchor in anchors:
            near[max(0, anchor - self.window) : anchor + self.window + 1] = True
        chosen = near[ranked] & (confidence[ranked] >= min(self.relaxed_threshold, self.threshold))
        chosen[0] = True
        return ranked[chosen]
