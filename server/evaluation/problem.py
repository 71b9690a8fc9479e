"""One problem of a task: what is asked, and how an answer is judged."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Final

ALL: Final = "all"  # in tables, all tasks together


class TaskError(Exception):
    """A task cannot be read; the message names file, line and field."""


@dataclass(frozen=True, slots=True)
class TextCheck:
    """The answer must be this text; runs of white space count as one space."""

    answer: str


@dataclass(frozen=True, slots=True)
class NumberCheck:
    """The answer's number, behind its last `####` or else its last one, must be this one."""

    answer: str


@dataclass(frozen=True, slots=True)
class ProgramCheck:
    """The answer is Python that must run through asserts.

    before       code in front of the answer; the answer completes it, or repeats its last function
    after        the asserts
    entry_point  name of the function that the answer may repeat; empty if it never does
    is_body      the answer, as long as it is not fenced, ends where its indentation does
    """

    before: str
    after: str
    entry_point: str = ""
    is_body: bool = False


@dataclass(frozen=True, slots=True)
class BuiltInCheck:
    """The built-in model's own grading (demo_model.grading) of the given task, prompt and reference answer."""

    task: str
    prompt: str
    answer: str


@dataclass(frozen=True, slots=True)
class NoCheck:
    """There is no reference: the answer can only be compared with another decoder's."""


Check = TextCheck | NumberCheck | ProgramCheck | BuiltInCheck | NoCheck


@dataclass(frozen=True, slots=True)
class Problem:
    """A prompt with its check.

    problem_id   unique within a run, the same in every run
    task         the row that the problem counts for in tables
    """

    problem_id: str
    task: str
    prompt: str
    check: Check

    @property
    def key(self) -> str:
        """What answers are kept under: another prompt of the same id is another problem."""
        digest = hashlib.sha256(self.prompt.encode(errors="replace")).hexdigest()
        return f"{self.problem_id}#{digest[:12]}"

    @property
    def runs_code(self) -> bool:
        """Whether judging an answer executes it."""
        return isinstance(self.check, ProgramCheck)


Record = dict[str, Any]  # one line of a JSONL file
