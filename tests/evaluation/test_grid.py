"""Grids: ready-made ones, files with lists, decoders from the command line; faults named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from psd_core.errors import ConfigError
from server.evaluation.cell import Cell
from server.evaluation.grid import grid_names, load_grid, parse_cell, read_grid


def by_name(cells: list[Cell]) -> dict[str, Cell]:
    return {cell.name: cell for cell in cells}


def test_the_papers_grid_has_every_baseline_and_every_depth() -> None:
    cells = by_name(load_grid(["paper"], []))
    decoders = [cell.decoder for cell in cells.values()]
    assert {"greedy", "threshold 0.9", "localleap 0.9"} <= set(cells)
    assert [one.branches for one in decoders if one.policy == "lopa"] == [1, 3, 5, 7]
    for policy in ("greedy", "threshold", "localleap"):
        for rule in ("exact", "token"):
            depths = [
                one.draft_depth
                for one in decoders
                if one.draft_depth and (one.policy, one.acceptance) == (policy, rule)
            ]
            assert depths == [1, 3, 5, 7]


@pytest.mark.parametrize("name", grid_names())
def test_ready_made_grids_load_with_unique_names(name: str) -> None:
    assert len(read_grid(name)) == len(by_name(read_grid(name)))


def test_all_ready_made_grids_go_together() -> None:
    assert load_grid(grid_names(), [])


def test_a_file_of_lists_makes_every_combination(tmp_path: Path) -> None:
    content = {"cell": [{"name": "t {threshold} {draft_depth}", "policy": "threshold", "threshold": [0.8, 0.9],
                         "draft_depth": [0, 2]}]}  # fmt: skip
    path = tmp_path / "grid.json"
    path.write_text(json.dumps(content))
    cells = by_name(read_grid(str(path)))
    assert list(cells) == ["t 0.8 0", "t 0.8 2", "t 0.9 0", "t 0.9 2"]
    assert cells["t 0.8 2"].undrafted == cells["t 0.8 0"].undrafted != cells["t 0.9 0"].undrafted
    assert "cache" not in cells["t 0.8 0"].settings  # left to the model


def test_a_decoder_on_the_command_line() -> None:
    cell = parse_cell("fast=threshold:threshold=0.8,draft_depth=2,draft_increment=policy,cache=dual")
    decoder = cell.decoder
    assert (cell.name, decoder.threshold, decoder.draft_depth, decoder.draft_increment) == ("fast", 0.8, 2, "policy")
    assert cell.settings["cache"] == "dual"
    assert parse_cell("greedy:draft_depth=0").name == "greedy"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("fastest", ("POLICY", "greedy", "fastest")),
        ("threshold:threshold=2", ("threshold must be between 0 and 1", "2")),
        ("threshold:treshold=0.9", ("treshold is not a decoder setting", "threshold")),
        ("threshold:0.9", ("'0.9' is not SETTING=VALUE",)),
        ("greedy:draft_depth=x", ("draft_depth must be an integer", "x")),
    ],
)
def test_a_wrong_decoder_is_named(text: str, words: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_cell(text)
    assert all(word in str(caught.value) for word in (*words, "--decoder"))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[[cells]]\n", ("list `cell`",)),
        ("cell = []\n", ("list `cell`",)),
        ('[[cell]]\npolicy = "greedy"\n[[cell]]\npolicy = "x"\n', ("cell 2", "policy must be one of", "x")),
        ('[[cell]]\npolicy = "greedy"\ndraft_depth = []\n', ("cell 1", "draft_depth must not be an empty list")),
        ('speed = 1\n[[cell]]\npolicy = "greedy"\n', ("nothing but `cell`", "speed")),
        ("[[cell\n", ("cannot be read",)),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, content: str, words: tuple[str, ...]) -> None:
    path = tmp_path / "grid.toml"
    path.write_text(content)
    with pytest.raises(ConfigError) as caught:
        read_grid(str(path))
    assert all(word in str(caught.value) for word in (*words, "grid.toml"))


def test_one_name_for_two_decoders_is_refused() -> None:
    with pytest.raises(ConfigError, match="two decoders are named 'a'"):
        load_grid([], ["a=greedy", "a=threshold"])
    assert len(load_grid(["quick", "quick"], [])) == len(load_grid(["quick"], []))
    with pytest.raises(ConfigError, match=r"--grid must be a file or one of .*paper"):
        load_grid(["papre"], [])
