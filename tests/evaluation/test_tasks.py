"""Task files: the fields tell the format, and whatever is wrong is named with its line and field."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from demo_model.grading import grade
from demo_model.problem import Problem as BuiltInProblem
from server.evaluation.formats import Form
from server.evaluation.judge import judge
from server.evaluation.problem import (
    BuiltInCheck,
    NoCheck,
    NumberCheck,
    ProgramCheck,
    Record,
    TaskError,
    TextCheck,
)
from server.evaluation.tasks import Choice, load_problems, load_prompts

HUMANEVAL: Record = {
    "task_id": "HE/0",
    "prompt": 'def one():\n    """1"""\n',
    "test": "def check(f):\n    assert f() == 1",
    "entry_point": "one",
}
MBPP: Record = {
    "task_id": 7,
    "text": "Write one.",
    "test_list": ["assert one() == 1"],
    "test_setup_code": "",
}


def write(folder: Path, *records: Record, name: str = "task.jsonl") -> str:
    path = folder / name
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def load(folder: Path, *records: Record, form: Form | None = None) -> list[object]:
    problems = load_problems([write(folder, *records)], Choice(), form or Form())
    return [problem.check for problem in problems]


def test_the_fields_tell_the_format(tmp_path: Path) -> None:
    checks = load(
        tmp_path,
        {"question": "How many?", "answer": "2 + 2 = 4\n#### 4"},
        {"prompt": "Capital of Italy?", "answer": "Rome"},
        {"prompt": "2 + 2?", "answer": 4},
        {"prompt": "1 / 8000000?", "answer": 1.25e-7},
        {"question": "How far?", "answer": "#### 1,200 miles in 3 days"},
        HUMANEVAL,
        MBPP,
        {"prompt": "def two():\n", "asserts": ["assert two() == 2"]},
    )
    assert checks == [
        NumberCheck("4"),
        TextCheck("Rome"),
        NumberCheck("4"),
        NumberCheck("0.000000125"),
        NumberCheck("1200"),
        ProgramCheck(HUMANEVAL["prompt"], HUMANEVAL["test"] + "\n\ncheck(one)", "one", is_body=True),
        ProgramCheck("", "assert one() == 1"),
        ProgramCheck("def two():\n", "assert two() == 2"),
    ]


def test_mbpp_shows_its_tests_and_a_template_sees_every_field(tmp_path: Path) -> None:
    path = write(tmp_path, MBPP)
    (problem,) = load_problems([path], Choice(), Form())
    assert problem.problem_id == "7"
    assert problem.task == "task"
    assert "Write one." in problem.prompt
    assert "assert one() == 1" in problem.prompt
    (filled,) = load_problems([path], Choice(), Form("Q {task_id}: {text} {x: 1} => {prompt}"))
    assert filled.prompt == "Q 7: Write one. {x: 1} => " + problem.prompt


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (['{"prompt": "a", "answer": "b"}', "{nonsense"], ("line 2", "not JSON")),
        (["[1]"], ("line 1", "JSON object")),
        (["[" * 100_000], ("line 1", "not JSON")),
        (['{"prompt": "a", "answer": NaN}'], ("line 1", "answer must be finite")),
        (['{"prompt": "a", "answer": "it is #### four"}'], ("line 1", "a number behind ####", "four")),
        (['{"prompt": "a", "answer": "b", "task": "all"}'], ("line 1", "'all' stands for all tasks together")),
        (['{"text": "a"}'], ("line 1", "no field prompt or question", "test_list")),
        (['{"prompt": "a"}'], ("line 1", "no field answer")),
        (['{"prompt": "", "answer": "b"}'], ("line 1", "prompt must be a text", "''")),
        (['{"prompt": "a", "answer": [1]}'], ("line 1", "answer must be", "[1]")),
        (['{"prompt": "a", "test": "b", "entry_point": "no name"}'], ("line 1", "entry_point", "no name")),
        (['{"prompt": "a", "test": "b"}'], ("line 1", "no field entry_point")),
        (['{"text": "a", "test_list": []}'], ("line 1", "test_list must be a list of texts")),
        (['{"prompt": "a", "answer": "b", "id": 1}', '{"prompt": "c", "answer": "d", "id": 1}'], ("id '1'", "unique")),
        ([], ("no problem",)),
    ],
)
def test_a_fault_is_named_with_its_line_and_field(tmp_path: Path, lines: list[str], words: tuple[str, ...]) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text("".join(line + "\n" for line in lines))
    with pytest.raises(TaskError) as caught:
        load_problems([str(path)], Choice(), Form())
    assert all(word in str(caught.value) for word in words), caught.value


def test_an_unknown_task_and_an_unknown_field_of_a_template_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"neither a file nor one of builtin"):
        load_problems(["gsm9k"], Choice(), Form())
    path = write(tmp_path, MBPP)
    with pytest.raises(TaskError, match=r"line 1: the template asks for \{question\}"):
        load_problems([path], Choice(), Form("{question}"))


def test_the_built_in_problems_are_the_same_each_time_and_their_own_answers_are_right() -> None:
    problems = load_problems(["builtin"], Choice(42, 5), Form())
    assert problems == load_problems(["builtin"], Choice(42, 5), Form())
    assert len({problem.problem_id for problem in problems}) == 42
    assert any(problem.runs_code for problem in problems)
    for problem in problems:
        if isinstance(problem.check, BuiltInCheck):
            check = problem.check
            assert judge(check, check.answer, None, None)
            assert judge(check, "", None, None) is grade(BuiltInProblem(check.task, check.prompt, check.answer), "")


def test_prompts_without_references_are_lines_or_records(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text("One?\n\nTwo?\n")
    problems = load_prompts(path, Form(needs_reference=False))
    assert [problem.prompt for problem in problems] == ["One?", "Two?"]
    assert all(problem.check == NoCheck() for problem in problems)
    records = Path(write(tmp_path, {"prompt": "One?"}, {"prompt": "Two?", "answer": "2"}))
    assert [one.check for one in load_prompts(records, Form(needs_reference=False))] == [NoCheck(), TextCheck("2")]


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path: Path) -> None:
    path = tmp_path / "task.jsonl"
    path.write_text('{"prompt": "One?", "answer": "1"}\n', encoding="utf-8-sig")
    assert [one.check for one in load_prompts(path, Form(needs_reference=False))] == [TextCheck("1")]
    assert [one.prompt for one in load_problems([str(path)], Choice(), Form())] == ["One?"]
