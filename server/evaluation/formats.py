"""A line of a task file to a problem. The fields tell the format; the names of files mean nothing.

| fields | format |
|---|---|
| question, answer with `#### N` | GSM8K: a number |
| prompt, test, entry_point | HumanEval: the prompt is code to complete |
| text or prompt, test_list | MBPP: a description, and asserts that are shown |
| prompt, asserts | code to complete, and asserts that are not shown |
| prompt or question, answer | a text, or a number if the answer is one in JSON |
| prompt or question | no reference, where that is allowed |
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from server.evaluation.judge import find_number
from server.evaluation.problem import (
    ALL,
    Check,
    NoCheck,
    NumberCheck,
    Problem,
    ProgramCheck,
    Record,
    TaskError,
    TextCheck,
)

FORMATS: Final = (
    "question and answer; prompt and answer; prompt, test and entry_point; text (or prompt) and test_list; "
    "prompt and asserts"
)
_PLACE = re.compile(r"\{([A-Za-z_]\w*)\}")
_NAME: Final = ("task_id", "id")


@dataclass(frozen=True, slots=True)
class Form:
    """How records become prompts.

    template        text with {field} for the record's fields and {prompt} for the format's own prompt; None: {prompt}
    needs_reference whether a record without a reference answer is an error
    """

    template: str | None = None
    needs_reference: bool = True


def to_problem(record: Record, task: str, number: int, form: Form) -> Problem:
    """The problem of one record, line `number` of its file. TaskError names the field at fault."""
    prompt, check = _read(record, form)
    if form.template is not None:
        prompt = _fill(form.template, record | {"prompt": prompt})
    if not prompt:
        raise TaskError("the prompt is empty")
    own_task = record.get("task", task)
    if not isinstance(own_task, str) or not own_task:
        raise TaskError(f"task must be a text, got {_shown(own_task)}")
    if own_task == ALL:
        raise TaskError(f"{ALL!r} stands for all tasks together: call the task, or the file, something else")
    name = next((str(record[field]) for field in _NAME if isinstance(record.get(field), str | int)), f"{task}:{number}")
    return Problem(name, own_task, prompt, check)


def _read(record: Record, form: Form) -> tuple[str, Check]:
    """(the format's own prompt, the check)."""
    if "entry_point" in record or "test" in record:
        return _humaneval(record)
    if "test_list" in record:
        return _mbpp(record)
    if "asserts" in record:
        prompt = _text(record, "prompt")
        return prompt, ProgramCheck(prompt, "\n".join(_texts(record, "asserts")))
    field = "prompt" if "prompt" in record else "question"
    if field not in record:
        raise TaskError(f"no field prompt or question; a line has {FORMATS}. Its fields are {', '.join(record)}")
    prompt = _text(record, field)
    if "answer" not in record:
        if form.needs_reference:
            raise TaskError(f"no field answer, test, test_list or asserts beside {field}")
        return prompt, NoCheck()
    return prompt, _answer_check(record["answer"])


def _answer_check(answer: object) -> Check:
    if isinstance(answer, bool) or not isinstance(answer, str | int | float):
        raise TaskError(f"answer must be a text or a number, got {_shown(answer)}")
    if isinstance(answer, float) and not math.isfinite(answer):
        raise TaskError(f"answer must be finite, got {answer}")
    if not isinstance(answer, str):
        return NumberCheck(f"{Decimal(repr(answer)):f}")  # as a text has it: 1e-07 would be read as 1 and -7
    if "####" in answer:
        number = find_number(answer)
        if number is None:
            raise TaskError(f"answer must have a number behind ####, got {_shown(answer)}")
        return NumberCheck(f"{number:f}")
    if not answer.strip():
        raise TaskError("answer must not be empty")
    return TextCheck(answer)


def _humaneval(record: Record) -> tuple[str, Check]:
    prompt, test, name = (_text(record, field) for field in ("prompt", "test", "entry_point"))
    if not name.isidentifier():
        raise TaskError(f"entry_point must be the name of a function, got {_shown(name)}")
    return prompt, ProgramCheck(prompt, f"{test}\n\ncheck({name})", name, is_body=True)


def _mbpp(record: Record) -> tuple[str, Check]:
    description = _text(record, "text" if "text" in record else "prompt")
    tests = _texts(record, "test_list")
    setup = record.get("test_setup_code", "")
    imports = record.get("test_imports", [])
    if not isinstance(setup, str):
        raise TaskError(f"test_setup_code must be a text, got {_shown(setup)}")
    before = "\n".join([*(_texts(record, "test_imports") if imports else []), setup]).strip()
    shown = "\n".join(tests)
    prompt = f"{description.strip()}\nThe code must pass these tests:\n\n{shown}\n"
    return prompt, ProgramCheck(before + "\n" if before else "", shown)


def _fill(template: str, record: Record) -> str:
    """The template with the record's fields in place; other braces are text."""

    def value(match: re.Match[str]) -> str:
        if match[1] not in record:
            raise TaskError(f"the template asks for {match[0]}, but the fields are {', '.join(record)}")
        return str(record[match[1]])

    return _PLACE.sub(value, template)


def _text(record: Record, field: str) -> str:
    value = _value(record, field)
    if not isinstance(value, str) or not value:
        raise TaskError(f"{field} must be a text and not empty, got {_shown(value)}")
    return value


def _texts(record: Record, field: str) -> list[str]:
    value = _value(record, field)
    if not isinstance(value, list) or not value or not all(isinstance(entry, str) for entry in value):
        raise TaskError(f"{field} must be a list of texts and not empty, got {_shown(value)}")
    return value


def _value(record: Record, field: str) -> object:
    if field not in record:
        raise TaskError(f"no field {field}")
    return record[field]


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"
