"""The script that waits for a GPU runs on a CPU, so that it will not fail for its own faults."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks.gpu import main
from benchmarks.gpu_checks import Check, compare
from benchmarks.traced import TRACE, TracedEngine
from psd_core.config import DecoderConfig
from psd_core.request import Request
from tests.engine.tiny import tiny_model


def test_the_script_checks_and_measures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "gpu.json"
    assert main(["--device", "cpu", "--shape", "tiny", "--compile", "no", "--json", str(file)]) == 0
    found = json.loads(file.read_text())
    assert found["holds"] is True
    assert found["notes"] == []
    assert {row["mode"] for row in found["rows"]} == {"plain", "graphs", "8 bits", "8 bits, graphs"}
    assert all(row["tokens_per_second"] > 0 and row["ratio"] > 0 for row in found["rows"])
    assert sum("graph" in check["name"] for check in found["checks"]) == 12
    assert sum(check["name"].startswith("8-bit") for check in found["checks"]) == 4
    shown = capsys.readouterr().out
    assert "| graphs | 3 | 3 |" in shown
    assert "**no**" not in shown


def test_what_cannot_be_made_is_said_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--device", "cpu", "--shape", "tiny", "--max-seconds", "-1"]) == 1
    assert "Not made for want of time: graphs, 1 requests, D = 0." in capsys.readouterr().out


def test_a_check_fails_on_a_difference_and_on_nan() -> None:
    one = torch.ones(3)
    assert compare("same", one, one, torch.float32).holds
    assert not compare("different", one, 1.1 * one, torch.float32).holds
    assert not compare("nothing", one, one * torch.nan, torch.float32).holds
    assert not Check("nan", float("nan"), 1.0).holds


@pytest.mark.parametrize("depth", [0, 3])
def test_a_trace_decides_how_many_forwards_an_answer_takes(depth: int) -> None:
    decoder = DecoderConfig(policy="greedy", block_length=8, draft_depth=depth, cache="dual")
    engine = TracedEngine(tiny_model(0), 2, 200, None, TRACE)
    times = engine.run([Request(name, (3, 4, 5), 16, decoder) for name in ("a", "b")])
    assert times.tokens == 32
    # A block of eight: the refresh decides one token, then 2, 1, 3 and 1 with drafts; so does the next block.
    assert len(times.other_seconds) == 2
    assert len(times.denoise_seconds) == (8 if depth else 14)
