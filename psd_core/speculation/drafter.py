"""Drafts: guesses at the next states of a block, made from the confidences at hand, without a model call.

Drafts form a chain, each adding to the one before the undecided positions that the policy would take next, or they are
sets of these positions, nested or not.
Method: PSD, arXiv 2605.15609, stage 2 (temporal).
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from psd_core.block import BlockState, Candidates, FloatArray
from psd_core.config import DraftIncrement
from psd_core.policies import Policy, denoise


def draft(
    state: BlockState, stale: Candidates, policy: Policy, depth: int, increment: DraftIncrement
) -> list[BlockState]:
    """Up to `depth` states beyond `state`: sets of positions for the increment "subsets", else a chain."""
    if increment == "subsets":
        return draft_subsets(state, stale, policy, depth)
    return draft_chain(state, stale, policy, depth, increment)


def draft_chain(
    state: BlockState, stale: Candidates, policy: Policy, depth: int, increment: int | Literal["policy"]
) -> list[BlockState]:
    """Up to `depth` nested states beyond `state`; fewer if the block completes.

    state      the policy's own next state, certain, not part of the result
    stale      the candidates `state` was made from; they cover all its undecided positions
    increment  positions added per draft, or "policy": what the policy selects from the stale candidates
    """
    drafts: list[BlockState] = []
    current = state
    if increment == "policy":
        while len(drafts) < depth and not current.is_complete:
            current = denoise(policy, current, stale)
            drafts.append(current)
        return drafts
    # Deciding positions does not change the order of those that are left: one ranking serves the whole chain.
    ranked = policy.rank(state, stale)[: depth * increment]
    for first in range(0, ranked.size, increment):
        current = current.fill(ranked[first : first + increment], stale)
        drafts.append(current)
    return drafts


def draft_subsets(state: BlockState, stale: Candidates, policy: Policy, depth: int) -> list[BlockState]:
    """Up to `depth` states beyond `state`, with sets of the most certain positions: {1}, {2}, {1, 2}, {3}, {1, 3} …

    In the order of binary numbers, so that a set comes behind all sets it contains. Which position the policy takes
    next is less certain than what it puts there, so the second one without the first is often worth its row. No draft
    completes the block: that would save no forward.
    """
    ranked = policy.rank(state, stale)
    drafts: list[BlockState] = []
    for number in range(1, depth + 1):
        chosen = [index for index in range(number.bit_length()) if number >> index & 1]
        if chosen[-1] == ranked.size or len(chosen) == ranked.size:
            break
        drafts.append(state.fill(ranked[chosen], stale))
    return drafts


def weakest_confidences(
    state: BlockState, stale: Candidates, policy: Policy, depth: int, increment: DraftIncrement, may_complete: bool
) -> FloatArray:
    """Per state of `draft` the confidence of the least certain token in it, [n].

    may_complete   whether a draft that completes the block counts as one
    """
    confidence = stale.confidence
    if isinstance(increment, str):
        drafts = draft(state, stale, policy, depth, increment)
        wanted = [row for row in drafts if may_complete or not row.is_complete]
        return np.asarray([confidence[row.filled_since(state)].min() for row in wanted], np.float32)
    lowest: FloatArray = np.minimum.accumulate(confidence[policy.rank(state, stale)])
    last = lowest.size - 1 if may_complete else lowest.size - 2  # index of the last position that may be drafted
    stops = np.arange(increment - 1, lowest.size, increment) if lowest.size else np.zeros(0, np.int64)
    if may_complete and lowest.size % increment:
        stops = np.append(stops, lowest.size - 1)  # the draft that completes the block may be a shorter one
    return lowest[stops[stops <= last][:depth]]
