"""`psd calibrate`: measure decoders over the user's own prompts and write the settings of the one to take."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from psd_core.errors import ConfigError
from server.decoder_file import write_decoder_file
from server.evaluation.ask import Ask
from server.evaluation.calibration import (
    REFERENCE,
    Point,
    choose,
    drafted_cells,
    is_pareto,
    judge_points,
    undrafted_cells,
)
from server.evaluation.cell import Cell
from server.evaluation.grades import Grades
from server.evaluation.journal import Journal
from server.evaluation.machine import describe_machine
from server.evaluation.markdown import table
from server.evaluation.problem import NoCheck, Problem, TaskError
from server.evaluation.run import Board, Plan, ask_all
from server.evaluation.sandbox import Limits, Sandbox, SandboxError
from server.evaluation.setup import make_ask, make_form, make_source, read_settings, run_settings
from server.evaluation.source import Source
from server.evaluation.summary import Results, Summary, summarize
from server.evaluation.tasks import load_prompts
from server.figures import POLICY_SETTINGS
from server.outputs import check_output
from server.terminal.canvas import harmless
from server.terminal.ending import FAILED, INTERRUPTED, WRONG_USAGE, fail
from server.terminal.source import SourceError

FEW: Final = 10  # prompts that tell next to nothing


def calibrate(given: argparse.Namespace) -> int:
    """Exit status: 0 done, 1 failed, 2 wrong usage, 130 stopped."""
    try:
        return _calibrate(given)
    except (ConfigError, TaskError) as error:
        return fail("calibrate", error, WRONG_USAGE)
    except (SourceError, SandboxError, OSError) as error:
        return fail("calibrate", error, FAILED)
    except KeyboardInterrupt:
        print("psd calibrate: stopped; nothing was written", file=sys.stderr)
        return INTERRUPTED


@dataclass(slots=True)
class _Calibration:
    """Measured so far: grows round by round."""

    problems: Sequence[Problem]
    ask: Ask
    source: Source
    grades: Grades
    journal: Journal
    board: Board
    min_agreement: float
    cells: list[Cell] = field(default_factory=list)

    def measure(self, cells: Sequence[Cell]) -> list[Point]:
        """More cells, and every point with them."""
        self.cells += cells
        ask_all(Plan(self.problems, cells, self.ask), self.source, self.journal, self.board)
        results = [self._results(cell) for cell in self.cells]
        return judge_points(results, self._summaries(results), self.min_agreement)

    def _results(self, cell: Cell) -> Results:
        answers = [self.journal.answers[cell.name][problem.key] for problem in self.problems]
        verdicts = None
        if not any(isinstance(problem.check, NoCheck) for problem in self.problems):
            texts = [answer.reply.text for answer in answers]
            verdicts = self.grades.judge(zip(self.problems, texts, strict=True), lambda: None)
        return Results(cell, answers, verdicts, self.journal.seconds(cell.name))

    def _summaries(self, results: Sequence[Results]) -> list[Summary]:
        return summarize(results, self.problems, REFERENCE)


def _calibrate(given: argparse.Namespace) -> int:
    settings = read_settings(given)
    ask = make_ask(given, settings)
    problems = load_prompts(Path(given.prompts), make_form(given, needs_reference=False))
    output = Path(given.output)
    check_output(output)
    sandbox = None
    if any(problem.runs_code for problem in problems):
        if given.allow_code_execution:
            sandbox = Sandbox(Limits())
        else:  # their answers are compared with greedy's instead
            problems = [Problem(one.problem_id, one.task, one.prompt, NoCheck()) for one in problems]
    source = make_source(given, settings, given.batch or 1)
    facts = run_settings(source, ask)
    with (
        tempfile.TemporaryDirectory(prefix="psd-calibrate-") as folder,
        Journal(Path(folder) / "journal.jsonl", facts) as journal,
        Board() as board,
    ):
        if len(problems) < FEW:
            board.note(f"{len(problems)} prompts tell little; take a few dozen of those that will be asked")
        grades = Grades(Path(folder) / "grades.jsonl", None, sandbox)
        calibration = _Calibration(problems, ask, source, grades, journal, board, given.min_agreement)
        points = calibration.measure(undrafted_cells())
        points = calibration.measure(drafted_cells(points))
    chosen = choose(points)
    print(harmless(_shown(points, chosen)))
    write_decoder_file(output, _settings(chosen, ask), _comments(chosen, points, facts))
    print(f"written to {output}: psd serve --decoder-config {output}", file=sys.stderr)
    return 0


def _shown(points: Sequence[Point], chosen: Point) -> str:
    """The table, fastest first."""
    has_accuracy = any(point.summary.accuracy for point in points)
    head = ["decoder", "agreement with greedy", *(["accuracy"] if has_accuracy else []), "TPF", "wall s", "tokens ÷ s"]
    rows = []
    for point in sorted(points, key=lambda point: -point.summary.tokens_per_second):
        summary = point.summary
        accuracy = summary.accuracy_of_all
        mark = "chosen" if point is chosen else "not as good" if not point.is_allowed else ""
        rows.append([
            summary.name,
            f"{point.agreement:.3f}",
            *(["–" if accuracy is None else f"{accuracy:.3f}"] if has_accuracy else []),
            f"{summary.tpf:.2f}",
            f"{summary.seconds:.2f}",
            f"{summary.tokens_per_second:.1f}",
            "yes" if is_pareto(point, points) else "",
            mark,
        ])  # fmt: skip  # a row
    return table([*head, "Pareto", ""], rows)


def _settings(chosen: Point, ask: Ask) -> dict[str, object]:
    """What the file says: the policy with its own numbers, drafts, and whatever place settings were given."""
    policy = next(name for name in POLICY_SETTINGS if name == chosen.settings["policy"])
    names = ("policy", *POLICY_SETTINGS[policy], "draft_depth", "draft_increment", "acceptance")
    return {name: chosen.settings[name] for name in names} | dict(ask.decoder or {})


def _comments(chosen: Point, points: Sequence[Point], facts: dict[str, object]) -> list[str]:
    greedy = next(point for point in points if point.summary.name == REFERENCE)
    machine = ", ".join(f"{name} {value}" for name, value in describe_machine().items())
    run = ", ".join(f"{name} {value}" for name, value in facts.items() if value is not None)
    return [
        "Default decoder settings for psd serve --decoder-config, written by psd calibrate.",
        f"{chosen.summary.name}: {chosen.summary.tokens_per_second:.1f} tokens per second, {chosen.summary.tpf:.2f} "
        f"tokens per forward; greedy: {greedy.summary.tokens_per_second:.1f} and {greedy.summary.tpf:.2f}. "
        f"Agreement with greedy {chosen.agreement:.3f}.",
        f"Measured over {chosen.summary.num_problems} prompts with {run}.",
        f"{machine}.",
    ]
