"""What a run has written: nothing is lost, nothing is mixed, and a line cut in the middle costs that line alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from psd_core.errors import ConfigError
from server.evaluation.answer import Answer, Cost, Reply
from server.evaluation.cell import make_cell
from server.evaluation.grades import Grades
from server.evaluation.journal import Journal
from server.evaluation.problem import Problem, ProgramCheck, TextCheck

CELL = make_cell({"policy": "greedy", "draft_depth": 0})
COST = Cost(3, 2, 0, 2, 0, 0, (2,), (3,), (0,))


class Counting:
    """Lets every program pass, and counts them."""

    def __init__(self, limits: object) -> None:
        self.limits = limits
        self.num_run = 0

    def passes(self, program: str) -> bool:
        self.num_run += 1
        return True


@pytest.mark.parametrize("text", ["half a pair \ud800, a break \u2028\x85\r\n, ü", ""])
def test_whatever_a_server_says_is_kept_and_read_again(tmp_path: Path, text: str) -> None:
    answer = Answer(CELL.name, "p", Reply(text, (1, 2, 3), "stop", COST, {"policy": "greedy"}), 0.5)
    with Journal(tmp_path / "journal.jsonl", {"model": "m"}) as journal:
        journal.begin(CELL)
        journal.add(answer)
    with Journal(tmp_path / "journal.jsonl", {"model": "m"}) as journal:
        assert journal.answers == {CELL.name: {"p": answer}}


def test_two_runs_do_not_write_one_journal(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with Journal(path, {"model": "m"}):
        before = path.read_bytes()
        for restarts in (False, True):
            with pytest.raises(ConfigError, match="is being written by another run"):
                Journal(path, {"model": "m"}, restarts)
        assert path.read_bytes() == before
    with Journal(path, {"model": "m"}):
        pass


def test_a_restart_throws_away_answers_and_settings(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text("what an old version wrote\n")
    with Journal(path, {"model": "other"}, restarts=True) as journal:
        assert not journal.answers
    with Journal(path, {"model": "other"}):
        pass


def test_a_journal_that_was_cut_off_in_its_first_line_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with Journal(path, {"model": "m"}):
        pass
    path.write_bytes(path.read_bytes()[:-5])
    with Journal(path, {"model": "m"}):
        pass
    with Journal(path, {"model": "m"}) as journal:
        assert not journal.answers


def test_a_broken_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text('{"settings": {"model": "m"}}\n{"cell":\n')
    with pytest.raises(ConfigError, match=r"is no journal of a run \(line 2: "):
        Journal(path, {"model": "m"})


@pytest.mark.parametrize("content", ["no journal", '{"settings": {"model": "m"}}\n{"answer": {}}\n', "7\n"])
def test_a_file_of_something_else_is_left_alone(tmp_path: Path, content: str) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text(content)
    with pytest.raises(ConfigError, match="is no journal of a run"):
        Journal(path, {"model": "m"})
    assert path.read_text() == content


@pytest.mark.parametrize("rest", ['["half', "7\n", '["key"]\n', "\xff\n", "[" * 10_000 + "\n"])
def test_a_line_of_grades_that_cannot_be_read_costs_that_line_alone(tmp_path: Path, rest: str) -> None:
    path = tmp_path / "grades.jsonl"
    pairs = [(Problem("a", "t", "a", ProgramCheck("", "")), "1"), (Problem("b", "t", "b", TextCheck("x")), "x")]
    assert Grades(path, None, Counting(5)).judge(pairs, lambda: None) == [True, True]
    path.write_bytes(path.read_bytes() + rest.encode("latin-1"))
    runner = Counting(5)
    assert Grades(path, None, runner).judge(pairs, lambda: None) == [True, True]
    assert runner.num_run == 0


def test_a_verdict_under_other_limits_is_not_reused(tmp_path: Path) -> None:
    pair = (Problem("a", "t", "a", ProgramCheck("", "")), "1")
    for limits, num_run in ((1, 1), (1, 0), (2, 1)):
        runner = Counting(limits)
        Grades(tmp_path / "grades.jsonl", None, runner).judge([pair], lambda: None)
        assert runner.num_run == num_run
