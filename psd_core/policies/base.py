"""What a transfer policy is: a pure rule that says which undecided positions to decide now."""

from __future__ import annotations

from typing import Literal, Protocol

from psd_core.block import BlockState, Candidates, IntArray

Statistic = Literal["entropy", "margin"]


class Policy(Protocol):
    """Deterministic and stateless: the same state and candidates always give the same positions."""

    @property
    def statistics(self) -> frozenset[Statistic]:
        """What the candidates must carry beside token and confidence."""
        ...

    def rank(self, state: BlockState, candidates: Candidates) -> IntArray:
        """All undecided positions of `state` ([m]), those to decide first in front; drafts follow this order."""
        ...

    def select(self, state: BlockState, candidates: Candidates) -> IntArray:
        """Undecided positions of `state` to decide now ([n], n >= 1).

        `state` must have at least one undecided position, and `candidates` must cover all of them.
        """
        ...


def denoise(policy: Policy, state: BlockState, candidates: Candidates) -> BlockState:
    """One denoising step: `state` with the policy's positions filled by their candidates (the pi-step)."""
    return state.fill(policy.select(state, candidates), candidates)
