"""Verification: which drafted states held, judged from one batched forward over all of them.

A drafted token is always judged by a row in which it is still masked (its parent); judging it by its own row
would be circular. Three rules, from the strictest to the loosest:

exact    a row counts if it is exactly the policy's next state: the policy's own trajectory, bit for bit
subset   a row counts if the policy would decide all its new positions, and perhaps more, with the same tokens
token    a row counts if its new tokens are the candidates of its parent, whatever the policy thinks of the positions

Method: PSD, arXiv 2605.15609, stage 3. `token` is the paper's wording; `exact` and `subset` are this project's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

import numpy as np

from psd_core.block import BlockState, Candidates, IntArray
from psd_core.config import AcceptanceName
from psd_core.editing import Editor, step
from psd_core.policies import Policy


def accept(
    rows: Sequence[BlockState],
    candidates: Sequence[Candidates | None],
    policy: Policy,
    rule: AcceptanceName,
    editor: Editor | None = None,
) -> tuple[int, ...]:
    """Indices of the accepted rows in order, from row 0 (always accepted) to the deepest consistent one.

    rows         the policy's own state, then the drafts: nested states, or for `exact` any, contained ones first
    candidates   per row, from a forward at that row; None for a complete row, which needs none
    editor       how the policy's step edits tokens, if it does: then only `exact` makes sense
    """
    assert editor is None or rule == "exact"
    assert len(rows) == len(candidates)
    path = [0]
    # Behind the last row there is nothing to accept, so what the policy would do next is not asked.
    while path[-1] + 1 < len(rows) and (scored := candidates[path[-1]]) is not None:
        following = _next_row(rows, path[-1], scored, policy, rule, editor)
        if following is None:
            break
        path.append(following)
    return tuple(path)


def _next_row(
    rows: Sequence[BlockState],
    current: int,
    scored: Candidates,
    policy: Policy,
    rule: AcceptanceName,
    editor: Editor | None,
) -> int | None:
    """The row that `rule` accepts after row `current`, or None."""
    state = rows[current]
    deeper = range(current + 1, len(rows))
    match rule:
        case "exact":
            target = step(policy, state, scored, editor)
            return next((index for index in deeper if rows[index].equals(target)), None)
        case "subset":
            decided_now = policy.select(state, scored)
            for index in reversed(deeper):
                filled = rows[index].filled_since(state)
                if np.isin(filled, decided_now).all() and _agrees(rows[index], filled, scored):
                    return index
            return None
        case "token":
            if current + 1 == len(rows):
                return None
            following = rows[current + 1]
            held = _agrees(following, following.filled_since(state), scored)
            return current + 1 if held else None
        case _ as unknown:
            assert_never(unknown)


def _agrees(row: BlockState, positions: IntArray, scored: Candidates) -> bool:
    return bool(np.array_equal(row.token_ids[positions], scored.token_ids[positions]))
