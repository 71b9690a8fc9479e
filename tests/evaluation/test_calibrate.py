"""`psd calibrate` as a process, and the file it writes as `psd serve` takes it."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from server.evaluation.answer import Answer, Cost, Reply
from server.evaluation.calibration import REFERENCE, agreement, choose, drafted_cells, judge_points, undrafted_cells
from server.evaluation.cell import Cell, make_cell
from server.evaluation.problem import NoCheck, Problem
from server.evaluation.summary import Results, summarize
from tests.evaluation.command import psd
from tests.server.process import ServerProcess

PROBLEMS = [Problem("a", "t", "a", NoCheck()), Problem("b", "t", "b", NoCheck())]


def measured(cell: Cell, seconds: float, *ids: tuple[int, ...], grades: list[bool] | None = None) -> Results:
    """Results with these tokens as answers."""
    answers = [
        Answer(
            cell.name,
            problem.problem_id,
            Reply("", tokens, "stop", Cost(len(tokens), 1, 0, 1, 0, 0, (1,), (), ()), dict(cell.settings)),
            seconds,
        )
        for problem, tokens in zip(PROBLEMS, ids, strict=True)
    ]
    return Results(cell, answers, grades, seconds)


def test_agreement_is_the_share_of_tokens_that_two_answers_share_in_order() -> None:
    cell = make_cell({"policy": "greedy", "draft_depth": 0})
    ours, theirs = measured(cell, 1.0, (1, 2, 3, 4), (5,)), measured(cell, 1.0, (1, 9, 3, 4), (5,))
    assert agreement(ours, ours) == 1.0
    assert agreement(ours, theirs) == pytest.approx((2 * 3 / 8 + 1) / 2)


def test_the_fastest_of_those_that_are_as_good_is_chosen_and_drafted() -> None:
    greedy, careful, bold = (
        make_cell({"policy": "greedy", "draft_depth": 0}),
        make_cell({"policy": "threshold", "draft_depth": 0}),
        make_cell({"policy": "topk", "draft_depth": 0}),
    )
    assert greedy.name == REFERENCE
    same, other = ((1, 2, 3, 4), (5, 6)), ((9, 9, 9, 9), (5, 6))
    every = [measured(greedy, 9.0, *same), measured(careful, 3.0, *same), measured(bold, 1.0, *other)]
    points = judge_points(every, summarize(every, PROBLEMS, REFERENCE), 0.95)
    assert [point.is_allowed for point in points] == [True, True, False]
    assert choose(points).settings == careful.settings
    policies = [cell.decoder.policy for cell in drafted_cells(points)]
    assert policies == ["threshold"] * 5 + ["greedy"] * 5
    # With references accuracy decides, not likeness.
    graded = [
        measured(greedy, 9.0, *same, grades=[True, False]),
        measured(careful, 3.0, *same, grades=[True, False]),
        measured(bold, 1.0, *other, grades=[False, True]),
    ]
    points = judge_points(graded, summarize(graded, PROBLEMS, REFERENCE), 0.95)
    assert choose(points).settings == bold.settings


def test_the_rounds_hold_the_reference_first_and_no_decoder_twice() -> None:
    names = [cell.name for cell in undrafted_cells()]
    assert names[0] == REFERENCE
    assert len(set(names)) == len(names)


def test_a_calibration_writes_what_the_server_takes(server: ServerProcess, model_path: Path, tmp_path: Path) -> None:
    prompts, output = tmp_path / "prompts.txt", tmp_path / "decoder.toml"
    prompts.write_text("What is 7 + 5?\nSort these numbers: 7, 9, 4.\n")
    ended = psd(
        "calibrate", str(prompts), "--url", server.url, "--max-tokens", "12", "--output", str(output),
        "--cache", "none", "--concurrency", "2",
    )  # fmt: skip  # one option and its value per place
    assert ended.returncode == 0, ended.stderr
    assert "2 prompts tell little" in ended.stderr
    (chosen,) = [line for line in ended.stdout.splitlines() if line.endswith("| chosen |")]
    written = tomllib.loads(output.read_text())
    assert written["cache"] == "none"
    with ServerProcess(model_path, tmp_path, ["--decoder-config", str(output), "--draft-depth", "2"]) as configured:
        told = configured.complete(max_tokens=4).json()["psd"]
    assert {name: told[name] for name in written if name != "draft_depth"} == {
        name: value for name, value in written.items() if name != "draft_depth"
    }
    assert told["draft_depth"] == 2  # the flag wins
    assert f"# {chosen.split('|')[1].strip()}: " in output.read_text()


@pytest.mark.parametrize(
    ("prompts", "arguments", "words"),
    [
        (None, [], "is not a file"),
        ("", [], "holds no prompt"),
        ('{"nothing": 1}', [], "line 1: no field prompt or question"),
        ("One?", ["--min-agreement", "2"], "must be a number between 0 and 1"),
        ("One?", ["--output", "/no/such/folder/file"], "--output must be a file name in a folder that exists"),
    ],
)
def test_wrong_usage_is_named(prompts: str | None, arguments: list[str], words: str, tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    if prompts is not None:
        path.write_text(prompts)
    ended = psd("calibrate", str(path), "--url", "http://127.0.0.1:9", *arguments)
    assert ended.returncode == 2
    assert words in ended.stderr
