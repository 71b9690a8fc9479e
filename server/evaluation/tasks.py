"""Tasks by name: the built-in model's problems, or a file of the user's."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from server.evaluation.formats import Form, to_problem
from server.evaluation.problem import BuiltInCheck, NoCheck, Problem, ProgramCheck, Record, TaskError

BUILT_IN: Final = "builtin"
BUILT_IN_PROBLEMS: Final = 1050  # 150 of each kind
SPLITS: Final = ("held-out", "held-out-names")


@dataclass(frozen=True, slots=True)
class Choice:
    """Which problems of a task.

    limit   at most so many; None: all of a file, BUILT_IN_PROBLEMS built-in ones
    seed    of the built-in model's problems
    """

    limit: int | None = None
    seed: int = 2026


def load_problems(names: Sequence[str], choice: Choice, form: Form) -> list[Problem]:
    """The problems of every task, in order. TaskError if one cannot be read, or if two have the same id."""
    problems = [problem for name in names for problem in _load(name, choice, form)]
    seen: set[str] = set()
    for problem in problems:
        if problem.problem_id in seen:
            raise TaskError(f"two problems have the id {problem.problem_id!r}; ids must be unique within a run")
        seen.add(problem.problem_id)
    return problems


def _load(name: str, choice: Choice, form: Form) -> list[Problem]:
    kind, colon, split = name.partition(":")
    if kind == BUILT_IN and (not colon or split in SPLITS):
        if form.template is not None:
            raise TaskError("a template is for files: the built-in model's problems are asked as it was trained")
        return _built_in(split or SPLITS[0], choice)
    path = Path(name)
    if not path.is_file():
        raise TaskError(
            f"task {name!r} is neither a file nor one of {BUILT_IN}, {', '.join(f'{BUILT_IN}:{s}' for s in SPLITS)}"
        )
    return list(_read(path, choice, form))


def _built_in(split: str, choice: Choice) -> list[Problem]:
    from demo_model.tasks import problems  # only who asks the built-in model's problems needs its recipe

    drawn = problems(split, choice.limit or BUILT_IN_PROBLEMS, choice.seed)
    return [
        Problem(
            problem_id=f"{split}:{choice.seed}:{index}",
            task=problem.task,
            prompt=problem.prompt,
            check=ProgramCheck(problem.prompt, "\n".join(problem.tests))
            if problem.tests
            else BuiltInCheck(problem.task, problem.prompt, problem.answer),
        )
        for index, problem in enumerate(drawn)
    ]


def _read(path: Path, choice: Choice, form: Form) -> Iterator[Problem]:
    count = 0
    for number, line in _lines(path):
        if choice.limit is not None and count == choice.limit:
            break
        try:
            yield to_problem(_record(line), path.stem, number, form)
        except TaskError as error:
            raise TaskError(f"{path}, line {number}: {error}") from None
        count += 1
    if not count:
        raise TaskError(f"{path} holds no problem")


def load_prompts(path: Path, form: Form) -> list[Problem]:
    """A file of prompts: one per line, or JSON objects as `load_problems` takes them, perhaps without references."""
    if not path.is_file():
        raise TaskError(f"{path} is not a file")
    lines = list(_lines(path))
    if not lines:
        raise TaskError(f"{path} holds no prompt")
    if lines[0][1].startswith("{"):
        return list(_read(path, Choice(), form))
    if form.template is not None:
        raise TaskError("a template needs a file of JSON objects")
    return [Problem(f"{path.stem}:{number}", path.stem, line, NoCheck()) for number, line in lines]


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """(line number, line) of every line that is not blank."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, line.strip()
    except UnicodeDecodeError as error:
        raise TaskError(f"{path} is not UTF-8: {error.reason} at byte {error.start} of a piece") from None
    except OSError as error:
        raise TaskError(f"{path} cannot be read: {error.strerror}") from None


def _record(line: str) -> Record:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise TaskError(f"not JSON: {error}") from None
    if not isinstance(record, dict):
        raise TaskError(f"must be a JSON object, got {line[:40]}")
    return record
