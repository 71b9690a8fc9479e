"""Asks whatever has no answer yet, cell by cell, and shows how far that is."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from server.evaluation.answer import Answer
from server.evaluation.ask import Ask
from server.evaluation.cell import Cell
from server.evaluation.journal import Journal
from server.evaluation.problem import Problem
from server.evaluation.source import Source
from server.terminal.canvas import harmless

WARM_UP_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run asks."""

    problems: Sequence[Problem]
    cells: Sequence[Cell]
    ask: Ask


class Board:
    """A bar with an estimate on a terminal, a line per cell elsewhere; all of it on standard error."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("elapsed"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not sys.stderr.isatty(),
        )
        self._bar = self._progress.add_task("", total=1)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._progress.stop()

    def begin(self, description: str, total: int) -> None:
        """A new bar of `total` steps."""
        self._progress.reset(self._bar, description=description, total=total)

    def describe(self, description: str) -> None:
        """What is being done now."""
        self._progress.update(self._bar, description=harmless(description))

    def advance(self) -> None:
        """One step done."""
        self._progress.advance(self._bar)

    def note(self, text: str) -> None:
        """A line that stays."""
        console = self._progress.console if sys.stderr.isatty() else self._console
        console.print(harmless(text), markup=False, highlight=False)


def ask_all(plan: Plan, source: Source, journal: Journal, board: Board) -> None:
    """Answer every problem in every cell, as far as the journal has no answer. SourceError if one fails."""
    for cell in plan.cells:
        journal.begin(cell)
    missing = {
        cell.name: [problem for problem in plan.problems if problem.key not in journal.answers[cell.name]]
        for cell in plan.cells
    }
    num_missing = sum(map(len, missing.values()))
    num_all = len(plan.cells) * len(plan.problems)
    if num_missing < num_all:
        board.note(f"{num_all - num_missing} of {num_all} answers are there already")
    if not num_missing:
        return
    _warm_up(plan, source)
    board.begin("", num_missing)
    for number, cell in enumerate(plan.cells, 1):
        if missing[cell.name]:
            board.describe(f"{number}/{len(plan.cells)} {cell.name}")
            _ask(missing[cell.name], cell, plan.ask, source, journal, board)
            answers = journal.answers[cell.name].values()
            tokens = sum(answer.reply.cost.tokens for answer in answers)
            forwards = sum(answer.reply.cost.forwards for answer in answers)
            board.note(
                f"{number}/{len(plan.cells)} {cell.name}: {tokens / max(1, forwards):.2f} tokens per forward, "
                f"{journal.seconds(cell.name):.1f} s"
            )


def _warm_up(plan: Plan, source: Source) -> None:
    """A short answer that nobody keeps: what is set up at the first forward belongs to no cell."""
    body = plan.ask.body(source.model, plan.problems[0], plan.cells[0]) | {"max_tokens": WARM_UP_TOKENS}
    for _ in source.replies(plan.ask.path, {plan.problems[0].key: body}):
        pass


def _ask(problems: Sequence[Problem], cell: Cell, ask: Ask, source: Source, journal: Journal, board: Board) -> None:
    bodies = {problem.key: ask.body(source.model, problem, cell) for problem in problems}
    before = journal.seconds(cell.name)
    started = time.perf_counter()
    with closing(source.replies(ask.path, bodies)) as replies:
        for key, reply in replies:
            journal.add(Answer(cell.name, key, reply, before + time.perf_counter() - started))
            board.advance()
