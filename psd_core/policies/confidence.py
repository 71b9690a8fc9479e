"""Policies that look only at the confidence of each candidate."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from psd_core.block import BlockState, Candidates, IntArray


@dataclass(frozen=True, slots=True)
class Greedy:
    """The single most confident position: LLaDA's loop with as many steps as tokens (arXiv 2502.09992)."""

    def select(self, state: BlockState, candidates: Candidates) -> IntArray:
        return candidates.ranked(state)[:1]


@dataclass(frozen=True, slots=True)
class TopK:
    """The `k` most confident positions: LLaDA's loop with fewer steps than tokens."""

    k: int

    def select(self, state: BlockState, candidates: Candidates) -> IntArray:
        return candidates.ranked(state)[: self.k]


@dataclass(frozen=True, slots=True)
class Threshold:
    """All positions with confidence >= `threshold`, the most confident one always (Fast-dLLM, arXiv 2505.22618)."""

    threshold: float

    def select(self, state: BlockState, candidates: Candidates) -> IntArray:
        ranked = candidates.ranked(state)
        num_certain = int(np.count_nonzero(candidates.confidence[ranked] >= self.threshold))
        return ranked[: max(1, num_certain)]
