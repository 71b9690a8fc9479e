"""A short soak: mixed traffic at three times the capacity, every answer checked. `benchmarks/soak.py` runs longer."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SECONDS = 40


def test_under_three_times_its_capacity_no_answer_is_lost_or_wrong(random_model_path: Path, tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    command = [sys.executable, "-m", "benchmarks.soak", "--seconds", str(SECONDS), "--json", str(figures)]
    ended = subprocess.run(
        [*command, "--model", str(random_model_path)],
        capture_output=True,
        text=True,
        timeout=600,
        cwd=Path(__file__).parents[2],
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    counts = json.loads(figures.read_text())["counts"]
    for kind in ("right", "left", "bad bodies refused", "refused 429"):
        assert counts[kind] > 0, counts
