"""LoPA: look ahead along several branches, go on with the one that leaves the model most certain (arXiv 2512.16229).

One forward scores the block's state (the anchor) and a branch per promising position, each of which decides that one
position more with its latest candidate. The row with the highest mean confidence over its undecided positions wins,
and its scores serve the next step. No token is checked against the model: a decoder of its own, and lossy.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from psd_core.block import BlockState, Candidates
from psd_core.policies import Policy

MIN_MASKED = 2  # a branch must leave something to be certain about


def branch_out(state: BlockState, stale: Candidates, policy: Policy, count: int) -> list[BlockState]:
    """Up to `count` states beyond `state`, siblings: each decides one more of the policy's next positions."""
    if state.num_masked < MIN_MASKED:
        return []
    return [state.fill(position[None], stale) for position in policy.rank(state, stale)[:count]]


def best_branch(rows: Sequence[BlockState], candidates: Sequence[Candidates | None]) -> int:
    """Index of the winning row; ties go to the lower one, so to the anchor first."""
    certainty = [
        -np.inf if scored is None else float(scored.confidence[~row.decided].mean())
        for row, scored in zip(rows, candidates, strict=True)
    ]
    return int(np.argmax(certainty))
