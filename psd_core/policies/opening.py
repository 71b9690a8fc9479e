"""The rule of context-causal models for the first position of a block, around any policy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from psd_core.block import BlockState, Candidates, IntArray
from psd_core.policies.base import Policy, Statistic

_FIRST = np.zeros(1, np.int64)


@dataclass(frozen=True, slots=True)
class OpensAlone:
    """`policy`, but a block's first position is decided before all others, and alone.

    A context-causal model reads that token off the finished text in front of the block, as an autoregressive one does,
    and its authors' loop predicts the others only with that token in place (openPangu's generation code).
    """

    policy: Policy

    @property
    def statistics(self) -> frozenset[Statistic]:
        return self.policy.statistics

    def rank(self, state: BlockState, candidates: Candidates) -> IntArray:
        ranked = self.policy.rank(state, candidates)
        return ranked if state.decided[0] else np.concatenate([_FIRST, ranked[ranked != 0]])

    def select(self, state: BlockState, candidates: Candidates) -> IntArray:
        return self.policy.select(state, candidates) if state.decided[0] else _FIRST
