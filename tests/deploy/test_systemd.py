"""The systemd unit, read by systemd's own checks and held against the server's defaults."""

from __future__ import annotations

import configparser
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from server.processes import STOP_SECONDS
from server.run import LAST_FRAMES_SECONDS
from server.tuning import DEFAULTS

UNIT = Path(__file__).parents[2] / "deploy" / "systemd" / "psd.service"
MAX_EXPOSURE = 2.5  # systemd's scale from 0 to 10

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed: apt-get install systemd"
)


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The unit with the program where it is installed here: the check wants it to exist."""
    text = UNIT.read_text()
    program = Path(sys.executable).parent / "psd"
    assert "ExecStart=/opt/psd/bin/psd serve\n" in text
    path = tmp_path / UNIT.name
    path.write_text(text.replace("/opt/psd/bin/psd", str(program)))
    return path


@needs_systemd
def test_systemd_finds_nothing(installed: Path) -> None:
    result = subprocess.run(["systemd-analyze", "verify", installed], capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stderr) == (0, "")


@needs_systemd
def test_the_unit_is_confined(installed: Path) -> None:
    bound = f"--threshold={MAX_EXPOSURE * 10:.0f}"
    command: list[str | Path] = ["systemd-analyze", "security", "--offline=true", bound, installed]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stdout


def test_the_unit_waits_for_the_drain_and_not_for_wrong_settings() -> None:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # the documented way to keep case
    parser.read(UNIT)
    service = parser["Service"]
    assert service["KillMode"] == "mixed"
    assert float(service["TimeoutStopSec"]) > DEFAULTS.drain_seconds + LAST_FRAMES_SECONDS + STOP_SECONDS
    wrong = subprocess.run(
        [sys.executable, "-m", "server.cli", "serve", "--port", "none"],
        cwd=UNIT.parents[2],
        capture_output=True,
        timeout=60,
    )
    assert str(wrong.returncode) == service["RestartPreventExitStatus"]


def test_the_unit_lets_ranks_find_each_other() -> None:
    """gloo and NCCL look their interface up, which glibc does over a netlink socket."""
    (line,) = [line for line in UNIT.read_text().splitlines() if line.startswith("RestrictAddressFamilies=")]
    assert "AF_NETLINK" in line.partition("=")[2].split()
