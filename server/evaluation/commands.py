"""`psd eval`: ask, judge, sum up, write."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from psd_core.errors import ConfigError
from server.evaluation.cell import Cell
from server.evaluation.flags import BATCH
from server.evaluation.grades import Grades
from server.evaluation.grid import load_grid
from server.evaluation.journal import Journal
from server.evaluation.machine import describe_machine
from server.evaluation.markdown import to_markdown
from server.evaluation.problem import Problem, TaskError
from server.evaluation.results import RunResults
from server.evaluation.run import Board, Plan, ask_all
from server.evaluation.sandbox import Limits, Sandbox, SandboxError
from server.evaluation.setup import make_ask, make_form, make_source, read_settings, run_settings, without_code
from server.evaluation.summary import Results, summarize
from server.evaluation.tasks import BUILT_IN, Choice, load_problems
from server.outputs import check_output
from server.terminal.canvas import harmless
from server.terminal.ending import FAILED, INTERRUPTED, WRONG_USAGE, fail
from server.terminal.source import SourceError

DEFAULT_BASELINE: Final = "greedy"


@dataclass(frozen=True, slots=True)
class _Prepared:
    """What was read before any model is loaded."""

    cells: list[Cell]
    problems: list[Problem]
    baseline: str
    notes: list[str]
    sandbox: Sandbox | None


def evaluate(given: argparse.Namespace) -> int:
    """Exit status: 0 done, 1 failed, 2 wrong usage, 130 stopped."""
    folder = Path(given.output)
    try:
        return _evaluate(given, folder)
    except (ConfigError, TaskError) as error:
        return fail("eval", error, WRONG_USAGE)
    except SourceError as error:
        status = fail("eval", error, FAILED)
        print(f"psd eval: what was answered is in {folder}; the same command goes on from there", file=sys.stderr)
        return status
    except (SandboxError, OSError) as error:
        return fail("eval", error, FAILED)
    except KeyboardInterrupt:
        print(f"psd eval: stopped; the same command goes on from the answers in {folder}", file=sys.stderr)
        return INTERRUPTED


def _evaluate(given: argparse.Namespace, folder: Path) -> int:
    settings = read_settings(given)
    ask = make_ask(given, settings)
    tasks = given.task or [BUILT_IN]
    prepared = _prepare(given, tasks)
    folder.mkdir(parents=True, exist_ok=True)
    check_output(folder / "journal.jsonl")
    source = make_source(given, settings, given.batch or BATCH)
    fixed = run_settings(source, ask)
    plan = Plan(prepared.problems, prepared.cells, ask)
    with Journal(folder / "journal.jsonl", fixed, given.restart) as journal, Board() as board:
        if given.restart:
            (folder / "grades.jsonl").unlink(missing_ok=True)
        for note in prepared.notes:
            board.note(note)
        ask_all(plan, source, journal, board)
        grades = Grades(folder / "grades.jsonl", given.extract, prepared.sandbox)
        results = _judge(plan, journal, grades, board)
    run = RunResults(
        settings=fixed | {"tasks": list(tasks), "problems": len(prepared.problems), "seed": given.seed},
        machine=describe_machine(),
        command=_command(sys.argv[1:], given.api_key or []),
        baseline=prepared.baseline,
        notes=prepared.notes,
        summaries=summarize(results, prepared.problems, prepared.baseline),
    )
    _write(run, folder)
    return 0


def _prepare(given: argparse.Namespace, tasks: Sequence[str]) -> _Prepared:
    grids = given.grid or ([] if given.decoder else ["quick"])
    cells = load_grid(grids, given.decoder)
    names = [cell.name for cell in cells]
    baseline = given.baseline or (DEFAULT_BASELINE if DEFAULT_BASELINE in names else names[0])
    if baseline not in names:
        raise ConfigError("baseline", f"--baseline must be one of {', '.join(map(repr, names))}; got {baseline!r}")
    form = make_form(given, needs_reference=True)
    problems, note = without_code(
        load_problems(tasks, Choice(given.problems, given.seed), form), is_allowed=given.allow_code_execution
    )
    if not problems:
        raise TaskError(f"nothing is left to ask: {note}")
    notes = [] if note is None else [note]
    sandbox = None
    if any(problem.runs_code for problem in problems):
        sandbox = Sandbox(Limits(seconds=given.code_seconds))
        notes.append(f"code is run with these limits: {sandbox.description}")
    return _Prepared(cells, problems, baseline, notes, sandbox)


def _judge(plan: Plan, journal: Journal, grades: Grades, board: Board) -> list[Results]:
    board.begin("judging", len(plan.cells) * len(plan.problems))
    results = []
    for cell in plan.cells:
        answers = [journal.answers[cell.name][problem.key] for problem in plan.problems]
        texts = [answer.reply.text for answer in answers]
        verdicts = grades.judge(zip(plan.problems, texts, strict=True), board.advance)
        results.append(Results(cell, answers, verdicts, journal.seconds(cell.name)))
    return results


def _write(run: RunResults, folder: Path) -> None:
    (folder / "results.json").write_text(run.to_json(), encoding="utf-8")
    text = to_markdown(run)
    (folder / "results.md").write_text(text, encoding="utf-8")
    print(harmless(text))
    written = ["results.json", "results.md"]
    try:
        from server.evaluation.plots import draw_all
    except ImportError:
        print("psd eval: no plots: matplotlib is missing (pip install 'psd-server[plots]')", file=sys.stderr)
    else:
        written += [path.name for path in draw_all(run, folder)]
    print(f"written to {folder}: {', '.join(written)}", file=sys.stderr)


def _command(arguments: Sequence[str], keys: Sequence[str]) -> str:
    """What was typed, without any key, however its flag was abbreviated."""
    shown: list[str] = []
    for argument in arguments:
        name, equals, value = argument.partition("=")
        shown.append("…" if argument in keys else f"{name}=…" if equals and value in keys else argument)
    return shlex.join(["psd", *shown])
