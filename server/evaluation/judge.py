"""Whether an answer is right. Pure but for the programs that a sandbox runs."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from typing import Final, Protocol

from server.evaluation.problem import (
    BuiltInCheck,
    Check,
    NoCheck,
    NumberCheck,
    ProgramCheck,
    TextCheck,
)

_NUMBER: Final = re.compile(r"-?\d[\d,]*(?:\.\d+)?|-?\.\d+")
_FENCE: Final = re.compile(r"```[\w+-]*[ \t]*\n(.*?)(?:\n```|\Z)", re.DOTALL)
_BODY_END: Final = re.compile(r"\n(?=[^\s)\]}])")  # a line at the margin that closes no bracket


class Runner(Protocol):
    """Runs programs."""

    @property
    def limits(self) -> object:
        """What a program is held to: under other limits the verdict may be another."""

    def passes(self, program: str) -> bool:
        """Whether the program runs to its end without an error."""


def judge(check: Check, text: str, extract: re.Pattern[str] | None, runner: Runner | None) -> bool:
    """True if `text`, what the model wrote, is right.

    extract   finds the answer in the text: the last match counts, its first group if there is one
    runner    must be there for a ProgramCheck
    """
    found = text if extract is None else _extracted(extract, text)
    if found is None:
        return False
    match check:
        case TextCheck(answer):
            return " ".join(found.split()) == " ".join(answer.split())
        case NumberCheck(answer):
            return find_number(found) is not None and find_number(found) == find_number(answer)
        case ProgramCheck():
            assert runner is not None, "code is judged only where that was allowed"
            return runner.passes(program(check, found))
        case BuiltInCheck(task, prompt, answer):
            from demo_model.grading import grade  # only who asks the built-in model's problems needs its recipe
            from demo_model.problem import Problem

            return grade(Problem(task, prompt, answer), found)
        case NoCheck():
            raise AssertionError("nothing to judge by")


def program(check: ProgramCheck, text: str) -> str:
    """The whole program: what stands before, the answer's code, the asserts."""
    fence = _FENCE.search(text)
    code = fence[1] if fence else text
    if check.entry_point and re.search(rf"^(?:async )?def {check.entry_point}\b", code, re.MULTILINE):
        # The prompt's function is closed, then defined again: what the prompt imports and defines besides stays.
        before = check.before.rstrip() + "\n    pass\n\n"
    else:
        before = check.before
        if check.is_body and not fence and (end := _BODY_END.search(code)):
            code = code[: end.start()]
    return before + code.strip("\n") + "\n\n" + check.after + "\n"


def _extracted(extract: re.Pattern[str], text: str) -> str | None:
    matches = list(extract.finditer(text))
    if not matches:
        return None
    found: str | None = matches[-1][1] if extract.groups else matches[-1][0]
    return found


def find_number(text: str) -> Decimal | None:
    """The number behind the last `####`, else the last number of the text."""
    _, mark, behind = text.rpartition("####")
    numbers = _NUMBER.findall(behind) if mark else _NUMBER.findall(text)
    if not numbers:
        return None
    try:
        return Decimal((numbers[0] if mark else numbers[-1]).replace(",", ""))
    except InvalidOperation:
        return None
