"""Drafts: guesses at the next states of a block, made from the confidences at hand, without a model call.

Drafts are nested: each adds to the one before the undecided positions that the policy would take next.
Method: PSD, arXiv 2605.15609, stage 2 (temporal).
"""

from __future__ import annotations

from psd_core.block import BlockState, Candidates
from psd_core.config import DraftIncrement
from psd_core.policies import Policy, denoise


def draft_chain(
    state: BlockState, stale: Candidates, policy: Policy, depth: int, increment: DraftIncrement
) -> list[BlockState]:
    """Up to `depth` nested states beyond `state`; fewer if the block completes.

    state      the policy's own next state, certain, not part of the result
    stale      the candidates `state` was made from; they cover all its undecided positions
    increment  positions added per draft, or "policy": what the policy selects from the stale candidates
    """
    drafts: list[BlockState] = []
    current = state
    while len(drafts) < depth and not current.is_complete:
        if increment == "policy":
            current = denoise(policy, current, stale)
        else:
            current = current.fill(policy.rank(current, stale)[:increment], stale)
        drafts.append(current)
    return drafts
