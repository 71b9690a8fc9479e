"""docs/models.md shows the tables that the code prints."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from psd_core.assets import demo_path
from psd_core.models.families import FAMILIES, UNSUPPORTED
from server.cli import main
from server.model_table import show_models

PAGE = Path(__file__).parents[2] / "docs" / "models.md"


def test_the_page_shows_the_tables_of_the_code() -> None:
    shown = re.findall(
        r"<!-- (?:families|memory|unsupported): .*? -->\n(.*?)\n?<!-- end -->", PAGE.read_text(), re.DOTALL
    )
    assert "\n\n".join(table.strip() for table in shown) == show_models(as_markdown=True)


def test_psd_models_names_every_architecture(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in (*FAMILIES, *UNSUPPORTED))


@pytest.mark.parametrize(
    "arguments", [("models",), ("inspect", str(demo_path())), ("generate", "Hi", "--max-tokens", "4")]
)
def test_a_reader_that_has_gone_ends_a_command_without_a_word(arguments: tuple[str, ...]) -> None:
    """As `psd models | head` does."""
    reading, writing = os.pipe()
    os.close(reading)
    ended = subprocess.run(
        [sys.executable, "-m", "server.cli", *arguments], stdout=writing, stderr=subprocess.PIPE, text=True, timeout=120
    )
    os.close(writing)
    assert ended.returncode == 1
    assert "Traceback" not in ended.stderr
    assert "Exception ignored" not in ended.stderr
