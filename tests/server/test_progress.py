"""The bar of loading shows on a terminal and nowhere else."""

from __future__ import annotations

import os
from pathlib import Path

from psd_core.models.loader import load_model
from server.progress import loading_bar

CHECKPOINT = Path(__file__).parents[1] / "data" / "golden" / "llada" / "ckpt"


def test_a_terminal_sees_the_bar_move_to_the_end() -> None:
    reader, writer = os.openpty()
    with os.fdopen(writer, "w") as terminal:
        with loading_bar(terminal) as advance:
            load_model(CHECKPOINT, device="cpu", on_progress=advance)
        seen = os.read(reader, 1 << 16).decode()
    os.close(reader)
    assert "loading weights:   0%" in seen or "loading weights: 0" in seen
    assert "loading weights" in seen


def test_a_file_sees_nothing(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as log, loading_bar(log) as advance:
        load_model(CHECKPOINT, device="cpu", on_progress=advance)
    assert (tmp_path / "log").read_text() == ""
