"""Shapes of drafts that learn, position by position, which undecided ones the policy's next steps decide.

The chance of a position depends on its stale confidence and on what its neighbours are: undecided, decided before, or
decided only now, which the stale candidates do not know of. Positions are taken as independent; that they are not is
part of what the benchmark shows. Every figure is of a step that was not learned from yet.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count as numbers
from typing import Final

import numpy as np
import numpy.typing as npt

from benchmarks.shapes import Scene, filled, key_of
from psd_core.block import BlockState, IntArray

Chances = npt.NDArray[np.float64]

CONFIDENCE_EDGES: Final = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
NUM_NEIGHBOURS: Final = 3  # undecided, decided before, decided only now
NUM_CELLS: Final = (len(CONFIDENCE_EDGES) + 1) * NUM_NEIGHBOURS**2
NUM_LEVELS: Final = 2  # the next step; any later one
NUM_FATES: Final = 3  # decided with the stale token, with its second choice, not decided or with another token
UNDECIDED, STALE, SECOND = 0, 1, 2
PRIOR_WEIGHT: Final = 4.0
LEAST: Final = 1e-6
MAX_NODES: Final = 64  # drafts that are looked at for each that is taken


@dataclass(slots=True)
class Habits:
    """Counts of what became of positions, by level and cell. Owned by one shape."""

    seen: Chances = field(default_factory=lambda: np.zeros((NUM_LEVELS, NUM_CELLS)))
    fates: Chances = field(default_factory=lambda: np.zeros((NUM_LEVELS, NUM_CELLS, NUM_FATES)))

    def chances(self, level: int, cells: IntArray) -> Chances:
        """[m, 3] chance of each fate of m positions, given their cells."""
        bins = self.seen[level].reshape(-1, NUM_NEIGHBOURS**2).sum(axis=1)
        bin_fates = self.fates[level].reshape(-1, NUM_NEIGHBOURS**2, NUM_FATES).sum(axis=1)
        here = cells // NUM_NEIGHBOURS**2
        guess = (here + 0.5) / (len(CONFIDENCE_EDGES) + 1)
        prior = np.stack([1 - 0.6 * guess, 0.55 * guess, 0.05 * guess], axis=1)
        mean = (bin_fates[here] + PRIOR_WEIGHT * prior) / (bins[here] + PRIOR_WEIGHT)[:, None]
        found = (self.fates[level][cells] + PRIOR_WEIGHT * mean) / (self.seen[level][cells] + PRIOR_WEIGHT)[:, None]
        result: Chances = np.clip(found, LEAST, 1 - LEAST)
        return result

    def learn(self, scene: Scene, following: Sequence[BlockState]) -> None:
        """As `Shape.learn`."""
        current = scene.state
        cells, stale, second = cells_of(scene), scene.stale.token_ids, scene.second_tokens
        for index, state in enumerate(following):
            level = min(index, NUM_LEVELS - 1)
            masked = np.flatnonzero(~current.decided)
            is_stale = state.decided & (state.token_ids == stale)
            is_second = state.decided & (state.token_ids == second)
            fate = np.where(is_stale, STALE, np.where(is_second, SECOND, UNDECIDED))
            np.add.at(self.seen[level], cells[masked], 1.0)
            np.add.at(self.fates[level], (cells[masked], fate[masked]), 1.0)
            current = state


def cells_of(scene: Scene) -> IntArray:
    """[L] what is known of each position before the forward, as one number."""
    kind = scene.state.decided.astype(np.int64) + (scene.state.decided & ~scene.before.decided)
    left = np.concatenate([[1], kind[:-1]])  # what stands before the block is decided
    right = np.concatenate([kind[1:], [0]])
    confidence = np.searchsorted(CONFIDENCE_EDGES, scene.stale.confidence, side="right")
    result: IntArray = (confidence * NUM_NEIGHBOURS + left) * NUM_NEIGHBOURS + right
    return result


@dataclass(slots=True)
class OrderedChain:
    """A chain of single positions, the likeliest to be decided next first."""

    habits: Habits = field(default_factory=Habits)

    def drafts(self, scene: Scene, count: int) -> list[BlockState]:
        return scene.prefixes(range(1, count + 1), _likely_order(scene, self.habits))

    def learn(self, scene: Scene, following: Sequence[BlockState]) -> None:
        self.habits.learn(scene, following)


@dataclass(slots=True)
class LikelyChain:
    """The nested drafts that most probably lie on the policy's way, however many positions each adds."""

    is_reordered: bool  # by chance; else the policy's own order
    habits: Habits = field(default_factory=Habits)

    def drafts(self, scene: Scene, count: int) -> list[BlockState]:
        order = _likely_order(scene, self.habits) if self.is_reordered else scene.ranked
        if order.size < 2:
            return []
        cells = cells_of(scene)[order]
        first, later = (_prefix_chances(self.habits.chances(level, cells)) for level in range(NUM_LEVELS))
        reached = total = first[0]
        for _ in range(count - 1):
            reached = reached @ later
            total = total + reached
        best = np.argsort(-total[1:-1], kind="stable")[:count] + 1  # a complete draft saves nothing
        return scene.prefixes(sorted(best.tolist()), order)

    def learn(self, scene: Scene, following: Sequence[BlockState]) -> None:
        self.habits.learn(scene, following)


@dataclass(slots=True)
class LikelyStates:
    """The states that most probably lie on the policy's way, nested or not, second choices of tokens among them.

    floor   chance below which a state is not drafted
    """

    has_second_tokens: bool
    floor: float = 0.0
    habits: Habits = field(default_factory=Habits)

    def drafts(self, scene: Scene, count: int) -> list[BlockState]:
        cells = cells_of(scene)
        levels = [self.habits.chances(level, cells) for level in range(NUM_LEVELS)]
        tie = numbers()
        heap = [(-1.0, next(tie), 0, scene.state)]
        chosen: dict[bytes, BlockState] = {}
        popped = 0
        while heap and len(chosen) < count and popped < MAX_NODES * count:
            negative, _, level, state = heapq.heappop(heap)
            popped += 1
            if -negative < self.floor:
                break
            if level:
                chosen.setdefault(key_of(state), state)
            if len(chosen) == count:
                break
            for chance, child in self._children(scene, state, levels[min(level, NUM_LEVELS - 1)], count):
                if not child.is_complete:
                    heapq.heappush(heap, (negative * chance, next(tie), level + 1, child))
        return list(chosen.values())

    def learn(self, scene: Scene, following: Sequence[BlockState]) -> None:
        self.habits.learn(scene, following)

    def _children(
        self, scene: Scene, state: BlockState, chances: Chances, count: int
    ) -> Iterator[tuple[float, BlockState]]:
        """(chance, state) of likely next states: everybody's likeliest fate, then with one or two changed."""
        masked = np.flatnonzero(~state.decided)
        fates = chances[masked].copy()
        if not self.has_second_tokens:
            fates[:, SECOND] = LEAST
        best = fates.argmax(axis=1)
        log_best = float(np.log(fates.max(axis=1)).sum())
        losses = np.log(fates) - np.log(fates.max(axis=1))[:, None]  # of changing a position's fate, 0 for the best
        losses[np.arange(masked.size), best] = -np.inf
        places = np.argsort(-losses, axis=None, kind="stable")[: count + 1]
        places = places[np.isfinite(losses.flat[places])]
        single = [(int(place) // NUM_FATES, int(place) % NUM_FATES, float(losses.flat[place])) for place in places]
        changes: list[tuple[float, list[tuple[int, int]]]] = [(0.0, [])]
        changes += [(loss, [(position, fate)]) for position, fate, loss in single]
        for index, (position, fate, loss) in enumerate(single):
            changes += [
                (loss + other_loss, [(position, fate), (other, other_fate)])
                for other, other_fate, other_loss in single[:index]
                if other != position
            ]
        nobody = float(np.exp(np.log(fates[:, UNDECIDED]).sum()))
        odds = fates[:, STALE] / fates[:, STALE].sum()  # where nothing is certain, the policy still decides one
        for loss, changed in sorted(changes, key=lambda change: -change[0])[: 2 * count + 1]:
            fate_of = best.copy()
            for position, fate in changed:
                fate_of[position] = fate
            decided = np.flatnonzero(fate_of != UNDECIDED)
            if not decided.size:
                continue
            chance = float(np.exp(log_best + loss))
            if decided.size == 1 and fate_of[decided[0]] == STALE:
                chance += nobody * float(odds[decided[0]])
            tokens = np.where(fate_of == SECOND, scene.second_tokens[masked], scene.stale.token_ids[masked])
            spread = np.zeros(state.decided.size, np.int64)
            spread[masked] = tokens
            yield min(chance, 1.0), filled(state, masked[decided], spread)


def _likely_order(scene: Scene, habits: Habits) -> IntArray:
    """Undecided positions, the likeliest to be decided next with its stale token first."""
    ranked = scene.ranked  # a stable sort keeps the policy's order among equals
    chance = habits.chances(0, cells_of(scene)[ranked])[:, STALE]
    result: IntArray = ranked[np.argsort(-chance, kind="stable")]
    return result


def _prefix_chances(fates: Chances) -> Chances:
    """[m + 1, m + 1] chance that a step goes from the first n positions decided to exactly the first k, k > n."""
    size = fates.shape[0]
    joined = np.concatenate([[0.0], np.log(fates[:, STALE]).cumsum()])  # the first k are decided
    rest = np.concatenate([np.log(fates[:, UNDECIDED])[::-1].cumsum()[::-1], [0.0]])  # those from k on are not
    chances: Chances = np.triu(np.exp(joined[None, :] - joined[:, None] + rest[None, :]), 1)
    nobody = np.exp(rest[:-1])
    chances[np.arange(size), np.arange(1, size + 1)] += nobody
    return chances
