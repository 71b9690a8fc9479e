"""What the answers of a cell come to. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from server.body import JsonObject
from server.evaluation.answer import Answer, Cost
from server.evaluation.cell import Cell
from server.evaluation.problem import ALL, Problem
from server.evaluation.statistics import Interval, Verdict, loses_more_than, mcnemar, paired_difference, wilson

MARGIN = 0.01  # one point of accuracy


@dataclass(frozen=True, slots=True)
class Results:
    """The answers of one cell, in the order of the problems.

    grades   None where no problem has a reference
    seconds  of decoding
    """

    cell: Cell
    answers: Sequence[Answer]
    grades: Sequence[bool] | None
    seconds: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """Accuracy against another cell on the same problems, per task and over `all`."""

    name: str
    differences: Mapping[str, Interval]
    p_value: float
    loses_a_point: Verdict
    same_output: float  # share of answers whose tokens are equal


@dataclass(frozen=True, slots=True)
class Summary:
    """One cell's row. Sums are over all answers; a forward that two requests share counts for both."""

    name: str
    series: str
    settings: JsonObject  # as the engine used them
    num_problems: int
    accuracy: Mapping[str, Interval]  # per task and over `all`; empty without references
    against_baseline: Comparison | None
    against_undrafted: Comparison | None
    tokens: int
    forwards: int
    refresh_forwards: int
    rows: int
    drafted_tokens: int
    accepted_tokens: int
    accepted_depths: tuple[int, ...]  # as in psd_core.events
    spatial_deciles: tuple[int, ...]
    temporal_deciles: tuple[int, ...]
    seconds: float

    @property
    def tpf(self) -> float:
        """Tokens per forward, as a ratio of sums, refreshes included."""
        return self.tokens / max(1, self.forwards)

    @property
    def tpf_without_refreshes(self) -> float:
        """Tokens per denoising forward."""
        return self.tokens / max(1, self.forwards - self.refresh_forwards)

    @property
    def rows_per_forward(self) -> float:
        """Block states per forward and request."""
        return self.rows / max(1, self.forwards)

    @property
    def tokens_per_second(self) -> float:
        """Over the whole cell, with however many requests at once."""
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def accuracy_of_all(self) -> float | None:
        """Share of right answers; None without references."""
        return self.accuracy[ALL].value if self.accuracy else None


def summarize(every: Sequence[Results], problems: Sequence[Problem], baseline: str) -> list[Summary]:
    """A summary per cell. baseline: the cell that accuracy is compared with."""
    by_name = {results.cell.name: results for results in every}
    tasks = [problem.task for problem in problems]
    return [_summary(results, by_name.get(baseline), _find_undrafted(results, every), tasks) for results in every]


def _find_undrafted(results: Results, every: Iterable[Results]) -> Results | None:
    """The same policy without drafts, if the grid has it."""
    if not results.cell.is_drafted:
        return None
    for other in every:
        if other.cell.decoder.draft_depth == 0 and other.cell.undrafted == results.cell.undrafted:
            return other
    return None


def _summary(results: Results, baseline: Results | None, undrafted: Results | None, tasks: Sequence[str]) -> Summary:
    costs = [answer.reply.cost for answer in results.answers]
    return Summary(
        name=results.cell.name,
        series=results.cell.series,
        settings=results.answers[0].reply.settings,
        num_problems=len(results.answers),
        accuracy=_accuracy(results.grades, tasks) if results.grades is not None else {},
        against_baseline=None if baseline is None or baseline is results else _compare(results, baseline, tasks),
        against_undrafted=None if undrafted is None else _compare(results, undrafted, tasks),
        tokens=sum(cost.tokens for cost in costs),
        forwards=sum(cost.forwards for cost in costs),
        refresh_forwards=sum(cost.refresh_forwards for cost in costs),
        rows=sum(cost.rows for cost in costs),
        drafted_tokens=sum(cost.drafted_tokens for cost in costs),
        accepted_tokens=sum(cost.accepted_tokens for cost in costs),
        accepted_depths=_added(costs, "accepted_depths"),
        spatial_deciles=_added(costs, "spatial_deciles"),
        temporal_deciles=_added(costs, "temporal_deciles"),
        seconds=results.seconds,
    )


def _added(costs: Sequence[Cost], name: str) -> tuple[int, ...]:
    histograms: list[tuple[int, ...]] = [getattr(cost, name) for cost in costs]
    return tuple(sum(counts) for counts in zip_longest(*histograms, fillvalue=0))


def _accuracy(grades: Sequence[bool], tasks: Sequence[str]) -> dict[str, Interval]:
    return {task: wilson(sum(some), len(some)) for task, some in _by_task(grades, tasks).items()}


def _by_task(grades: Sequence[bool], tasks: Sequence[str]) -> dict[str, list[bool]]:
    """Verdicts per task, in order of first appearance, and over `all` at the end."""
    result: dict[str, list[bool]] = {}
    for is_right, task in zip(grades, tasks, strict=True):
        result.setdefault(task, []).append(is_right)
    return result | {ALL: list(grades)}


def _compare(ours: Results, theirs: Results, tasks: Sequence[str]) -> Comparison:
    pairs = zip(ours.answers, theirs.answers, strict=True)
    same = sum(one.reply.token_ids == other.reply.token_ids for one, other in pairs) / len(ours.answers)
    if ours.grades is None or theirs.grades is None:
        return Comparison(theirs.cell.name, {}, 1.0, "open", same)
    our, their = _by_task(ours.grades, tasks), _by_task(theirs.grades, tasks)
    differences = {task: paired_difference(our[task], their[task]) for task in our}
    return Comparison(
        name=theirs.cell.name,
        differences=differences,
        p_value=mcnemar(ours.grades, theirs.grades),
        loses_a_point=loses_more_than(differences[ALL], MARGIN),
        same_output=same,
    )
