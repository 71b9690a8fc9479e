"""A short soak: mixed traffic at three times the capacity, every answer checked. `benchmarks/soak.py` runs longer."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SECONDS = 60
ROOT = Path(__file__).parents[2]


def test_under_three_times_its_capacity_no_answer_is_lost_or_wrong(random_model_path: Path, tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    command = [sys.executable, "-m", "benchmarks.soak", "--seconds", str(SECONDS), "--json", str(figures)]
    ended = subprocess.run(
        [*command, "--model", str(random_model_path)],
        capture_output=True,
        text=True,
        timeout=600,
        cwd=ROOT,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    counts = json.loads(figures.read_text())["counts"]
    for kind in ("right", "left", "bad bodies refused", "refused 429"):
        assert counts[kind] > 0, counts


def test_leavers_leave_nothing_behind(random_model_path: Path, tmp_path: Path) -> None:
    """A few of them; how much memory and time ten thousand take is measured where nothing else runs."""
    figures = tmp_path / "figures.json"
    bounds = ["--clients", "300", "--max-growth", "0.5", "--max-idle", "30"]
    command = [sys.executable, "-m", "benchmarks.leavers", *bounds, "--json", str(figures)]
    ended = subprocess.run(
        [*command, "--model", str(random_model_path)],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=ROOT,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert set(json.loads(figures.read_text())["kinds"]) == {"half", "at once", "later", "chunk", "done"}
