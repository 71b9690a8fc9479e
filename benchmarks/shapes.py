"""Shapes of drafts: which states to guess beyond the policy's own, from candidates that are one step old.

Those of this file follow a fixed rule; `benchmarks.habits` has those that learn from what held. The server offers
chains and sets; states need not be nested, since `exact` accepts a draft wherever it stands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from psd_core.block import BlockState, Candidates, IntArray
from psd_core.policies import Policy
from psd_core.speculation import draft_chain, draft_subsets


@dataclass(frozen=True, slots=True, eq=False)
class Scene:
    """What a drafter knows.

    before   the state that `stale` was made from
    state    the policy's own step from there, certain: the row that drafts go beyond
    """

    before: BlockState
    stale: Candidates
    state: BlockState
    policy: Policy

    @property
    def ranked(self) -> IntArray:
        """Undecided positions, [m], in the policy's order by the stale candidates."""
        return self.policy.rank(self.state, self.stale)

    @property
    def second_tokens(self) -> IntArray:
        """[L] the second most probable token of every undecided position."""
        assert self.stale.top is not None
        return self.stale.top.token_ids[:, 1]

    def prefixes(self, counts: Iterable[int], order: IntArray | None = None) -> list[BlockState]:
        """States with so many of the ranked positions filled, as far as there are as many."""
        ranked = self.ranked if order is None else order
        return [self.state.fill(ranked[:count], self.stale) for count in counts if count <= ranked.size]


class Shape(Protocol):
    """Drafts for a scene; may learn from what came of it."""

    def drafts(self, scene: Scene, count: int) -> list[BlockState]:
        """At most `count` states beyond `scene.state`, the most promising first."""
        ...

    def learn(self, scene: Scene, following: Sequence[BlockState]) -> None:
        """Take note of the states that the policy went on to from `scene.state`, as far as the forward told them."""
        ...


@dataclass(frozen=True, slots=True)
class Fixed:
    """A rule that learns nothing."""

    rule: Callable[[Scene, int], list[BlockState]]

    def drafts(self, scene: Scene, count: int) -> list[BlockState]:
        return self.rule(scene, count)

    def learn(self, scene: Scene, following: Sequence[BlockState]) -> None:
        pass


def chain(increment: int | Literal["policy"]) -> Fixed:
    """The server's own drafts."""
    return Fixed(lambda scene, count: draft_chain(scene.state, scene.stale, scene.policy, count, increment))


def floored_chain(floor: float) -> Fixed:
    """A chain of single positions that ends before the first one below `floor`."""

    def rule(scene: Scene, count: int) -> list[BlockState]:
        num_likely = int(np.count_nonzero(scene.stale.confidence[scene.ranked] >= floor))
        return scene.prefixes(range(1, 1 + min(count, num_likely)))

    return Fixed(rule)


def steps_of(counts: Sequence[int]) -> Fixed:
    """A chain whose drafts fill so many positions each, counted from the certain state."""
    return Fixed(lambda scene, count: scene.prefixes(counts[:count]))


def ladder(floors: Sequence[float]) -> Fixed:
    """Each draft fills whatever is above a floor, floor after floor; equal drafts make way for single positions."""

    def rule(scene: Scene, count: int) -> list[BlockState]:
        confidence = scene.stale.confidence[scene.ranked]
        counts: list[int] = []
        wanted = [max(1, int(np.count_nonzero(confidence >= floor))) for floor in floors]
        for one in (*wanted, *range(1, confidence.size + 1)):
            if one not in counts and len(counts) < count:
                counts.append(one)
        return scene.prefixes(sorted(counts))

    return Fixed(rule)


def with_second_token(scene: Scene, count: int) -> list[BlockState]:
    """A chain, and the first draft with its second choice of token instead."""
    ranked = scene.ranked
    if not ranked.size:
        return []
    return [*scene.prefixes(range(1, count)), filled(scene.state, ranked[:1], scene.second_tokens)]


def with_swapped_order(scene: Scene, count: int) -> list[BlockState]:
    """A chain, and the second position without the first."""
    return [*scene.prefixes(range(1, count)), *scene.prefixes([1], scene.ranked[1:])]


def subsets(scene: Scene, count: int) -> list[BlockState]:
    """Sets of the most certain positions, in the order of binary numbers: {1}, {2}, {1, 2}, {3}, {1, 3} …"""
    return draft_subsets(scene.state, scene.stale, scene.policy, count)


def filled(state: BlockState, positions: IntArray, token_ids: IntArray) -> BlockState:
    """`state` with undecided `positions` ([n]) decided as `token_ids` ([L]) say."""
    ids, decided = state.token_ids.copy(), state.decided.copy()
    ids[positions] = token_ids[positions]
    decided[positions] = True
    return BlockState(ids, decided)


def key_of(state: BlockState) -> bytes:
    """Equal for equal states only: undecided positions hold 0."""
    return state.decided.tobytes() + state.token_ids.tobytes()
