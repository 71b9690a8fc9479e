"""Which decoder suits a model, its hardware and some prompts: what to measure, and what to choose. Pure.

Two rounds. Without drafts the policies show what they do to the answers; then those that may stay get drafts. `exact`
drafts change no answer, so that the second round is about time alone but for `token`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Final

from server.evaluation.cell import Cell, Settings, make_cell
from server.evaluation.summary import MARGIN, Results, Summary

REFERENCE: Final = "greedy"
NUM_DRAFTED_POLICIES: Final = 2
_POLICIES: Final[tuple[Settings, ...]] = (
    {"policy": "greedy"},
    {"policy": "topk", "k": 2},
    *({"policy": "threshold", "threshold": threshold} for threshold in (0.95, 0.9, 0.8, 0.7)),
    {"policy": "factor", "factor": 1.0},
    {"policy": "entropy", "gamma": 0.1},
    {"policy": "margin", "threshold": 0.8},
    {"policy": "localleap"},
)
_DRAFTS: Final[tuple[Settings, ...]] = (
    *({"draft_depth": depth} for depth in (1, 3, 5, 7)),
    {"draft_depth": 3, "acceptance": "token"},
)


@dataclass(frozen=True, slots=True)
class Point:
    """A decoder as measured.

    agreement   mean likeness of its answers' tokens to greedy's, from 0 to 1
    is_allowed  whether its answers are as good, by whatever can be judged
    """

    summary: Summary
    settings: Settings
    agreement: float
    is_allowed: bool

    @property
    def quality(self) -> float:
        """Accuracy, or agreement where there is no reference."""
        accuracy = self.summary.accuracy_of_all
        return self.agreement if accuracy is None else accuracy


def undrafted_cells() -> list[Cell]:
    """The first round; the reference is the first one."""
    return [make_cell({**policy, "draft_depth": 0}) for policy in _POLICIES]


def drafted_cells(points: Sequence[Point]) -> list[Cell]:
    """The second round: drafts over the fastest of the policies that may stay."""
    allowed = sorted(
        (point for point in points if point.is_allowed), key=lambda point: -point.summary.tokens_per_second
    )
    return [make_cell({**point.settings, **draft}) for point in allowed[:NUM_DRAFTED_POLICIES] for draft in _DRAFTS]


def judge_points(every: Sequence[Results], summaries: Sequence[Summary], min_agreement: float) -> list[Point]:
    """Every cell with its agreement, and whether it may be chosen: accuracy within a point of greedy's where there are
    references, else agreement."""
    reference, wanted = next(pair for pair in zip(every, summaries, strict=True) if pair[0].cell.name == REFERENCE)
    points = []
    for results, summary in zip(every, summaries, strict=True):
        likeness = agreement(results, reference)
        accuracy, best = summary.accuracy_of_all, wanted.accuracy_of_all
        is_good = likeness >= min_agreement if accuracy is None or best is None else accuracy >= best - MARGIN
        points.append(Point(summary, results.cell.settings, likeness, is_good))
    return points


def agreement(ours: Results, theirs: Results) -> float:
    """Mean over the prompts of 2m / n: m tokens that the two answers share in order, n tokens in both together."""
    ratios = [
        SequenceMatcher(None, one.reply.token_ids, other.reply.token_ids, autojunk=False).ratio()
        for one, other in zip(ours.answers, theirs.answers, strict=True)
    ]
    return sum(ratios) / len(ratios)


def choose(points: Sequence[Point]) -> Point:
    """The fastest in measured time of those that are allowed; greedy always is."""
    return max((point for point in points if point.is_allowed), key=lambda point: point.summary.tokens_per_second)


def is_pareto(point: Point, points: Sequence[Point]) -> bool:
    """Whether no other decoder is at least as good and as fast, and better in one."""
    here = (point.quality, point.summary.tokens_per_second)
    return not any(
        there != here and there[0] >= here[0] and there[1] >= here[1]
        for there in ((other.quality, other.summary.tokens_per_second) for other in points)
    )
