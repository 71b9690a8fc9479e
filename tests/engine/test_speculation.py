"""Policies, drafts and acceptance on hand-made candidates."""

from __future__ import annotations

import numpy as np
import pytest

from psd_core.block import BlockState, Candidates
from psd_core.config import AcceptanceName
from psd_core.policies import Greedy, Policy, Threshold, TopK
from psd_core.speculation import accept, draft_chain, draft_subsets


def candidates(tokens: list[int], confidence: list[float]) -> Candidates:
    with np.errstate(divide="ignore"):
        return Candidates(np.asarray(tokens), np.log(np.asarray(confidence, np.float32)))


def state(tokens: list[int | None]) -> BlockState:
    decided = np.asarray([token is not None for token in tokens])
    return BlockState(np.asarray([token or 0 for token in tokens]), decided)


EMPTY = state([None] * 4)
FLAT = candidates([10, 11, 12, 13], [0.5, 0.9, 0.9, 0.2])


@pytest.mark.parametrize(
    ("policy", "chosen"),
    [
        (Greedy(), [1]),  # a tie goes to the lower position
        (TopK(2), [1, 2]),
        (TopK(9), [1, 2, 0, 3]),
        (Threshold(0.5), [1, 2, 0]),
        (Threshold(0.95), [1]),  # nothing certain: the best one
        (Threshold(0.0), [1, 2, 0, 3]),
    ],
)
def test_policies_pick_the_most_confident(policy: Policy, chosen: list[int]) -> None:
    assert policy.select(EMPTY, FLAT).tolist() == chosen


def test_drafts_are_nested_and_end_with_the_block() -> None:
    first = EMPTY.fill(Greedy().select(EMPTY, FLAT), FLAT)
    chain = draft_chain(first, FLAT, Greedy(), 5, 1)
    assert [draft.decided.tolist() for draft in chain] == [
        [False, True, True, False],
        [True, True, True, False],
        [True, True, True, True],
    ]
    assert [draft.num_masked for draft in draft_chain(first, FLAT, Greedy(), 5, 2)] == [1, 0]
    assert [draft.num_masked for draft in draft_chain(first, FLAT, TopK(3), 1, "policy")] == [0]
    assert draft_chain(first, FLAT, Greedy(), 0, 1) == []


ROWS = [
    state([None, 11, None, None]),
    state([None, 11, 12, None]),
    state([10, 11, 12, None]),
    state([10, 11, 12, 13]),
]


def scored(*confidences: list[float] | None, tokens: list[int] | None = None) -> list[Candidates | None]:
    return [None if c is None else candidates(tokens or [10, 11, 12, 13], c) for c in confidences]


def test_exact_jumps_to_the_policys_next_state_at_any_depth() -> None:
    both = scored([0.9, 0, 0.9, 0.1], [0.1, 0, 0, 0.1], [0, 0, 0, 0.5], None)
    assert accept(ROWS, both, Threshold(0.8), "exact") == (0, 2, 3)


def test_exact_refuses_a_row_that_is_only_part_of_the_policys_step() -> None:
    rows = ROWS[:2]
    both = scored([0.9, 0, 0.9, 0.1], [0.9, 0, 0, 0.1])
    assert accept(rows, both, Threshold(0.8), "exact") == (0,)
    assert accept(rows, both, Threshold(0.8), "subset") == (0, 1)


def test_subset_takes_the_deepest_row_that_qualifies() -> None:
    both = scored([0.9, 0, 0.9, 0.1], [0.9, 0, 0, 0.1], [0, 0, 0, 0.5], None)
    assert accept(ROWS, both, Threshold(0.8), "subset") == (0, 2, 3)


def test_token_looks_at_tokens_alone_and_stops_at_the_first_failure() -> None:
    unlikely = scored([0.1, 0, 0.1, 0.9], [0.1, 0, 0, 0.9], [0, 0, 0, 0.9], None)
    assert accept(ROWS, unlikely, Greedy(), "token") == (0, 1, 2, 3)
    assert accept(ROWS, unlikely, Greedy(), "exact") == (0,)
    changed = scored([0.1, 0, 0.1, 0.9], [0.1, 0, 0, 0.9], [0, 0, 0, 0.9], None)
    changed[1] = candidates([99, 11, 12, 13], [0.1, 0, 0, 0.9])
    assert accept(ROWS, changed, Greedy(), "token") == (0, 1)


@pytest.mark.parametrize("rule", ["exact", "subset", "token"])
def test_a_changed_token_is_never_accepted(rule: AcceptanceName) -> None:
    changed = scored([0.5, 0, 0.9, 0.1], [0.9, 0, 0, 0.1], tokens=[10, 11, 99, 13])
    assert accept(ROWS[:2], changed, Greedy(), rule) == (0,)


@pytest.mark.parametrize(
    ("size", "depth", "expected"),
    [
        (5, 0, []),
        (5, 3, [{3}, {1}, {1, 3}]),
        (5, 7, [{3}, {1}, {1, 3}, {0}, {0, 3}, {0, 1}, {0, 1, 3}]),
        (2, 7, [{1}, {0}]),  # both together would complete the block
        (1, 7, []),
    ],
)
def test_subsets_are_all_sets_of_the_most_confident_positions_but_the_whole_block(
    size: int, depth: int, expected: list[set[int]]
) -> None:
    state = BlockState.masked(size)
    found = candidates([1, 2, 3, 4, 5][:size], [0.6, 0.7, 0.1, 0.8, 0.2][:size])
    drafts = draft_subsets(state, found, Greedy(), depth)
    assert [set(draft.filled_since(state).tolist()) for draft in drafts] == expected


def test_exact_takes_the_second_position_without_the_first_and_goes_on_from_there() -> None:
    """Rows {a}, {b}, {a, b}: the policy turns out to decide b first, then a."""
    state = BlockState.masked(3)
    stale = candidates([1, 2, 3], [0.8, 0.7, 0.1])
    rows = [state, *draft_subsets(state, stale, Greedy(), 3)]
    b_first = candidates([1, 2, 3], [0.5, 0.9, 0.1])
    assert accept(rows, [b_first, b_first, stale, stale], Greedy(), "exact") == (0, 2, 3)
