"""`psd` as a process, for tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def psd(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PSD_")}
    return subprocess.run(
        [sys.executable, "-m", "server.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
        env=environment | {"OMP_NUM_THREADS": "1", "COLUMNS": "200"},
        cwd=ROOT,
    )
