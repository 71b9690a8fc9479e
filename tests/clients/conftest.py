"""Where the clients are. They live in an environment of their own, which scripts/clients installs."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from importlib.metadata import distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CLIENTS = ROOT / ".venv-clients"
SCRIPTS = Path(__file__).parent / "scripts"
TIMEOUT_SECONDS = 400

Runner = Callable[..., str]


@pytest.fixture(scope="session")
def installed() -> frozenset[str]:
    """Names of the Python packages in the clients' environment."""
    folders = [str(folder) for folder in CLIENTS.glob("lib/python3*/site-packages")]
    return frozenset(found.metadata["Name"].lower().replace("_", "-") for found in distributions(path=folders))


@pytest.fixture
def run_client(installed: frozenset[str], tmp_path: Path) -> Runner:
    """Runs a command of the clients' environment; skips if its package is not there; returns what it prints."""

    def run(package: str, command: str, *arguments: str, **variables: str) -> str:
        if package not in installed:
            pytest.skip(f"{package} is not installed in .venv-clients: scripts/clients installs it")
        return execute([str(CLIENTS / "bin" / command), *arguments], tmp_path, **variables)

    return run


@pytest.fixture
def run_script(run_client: Runner) -> Runner:
    """Runs one of the scripts beside this file with the clients' Python; its arguments are the addresses."""

    def run(package: str, name: str, *arguments: str, **variables: str) -> str:
        return run_client(package, "python", str(SCRIPTS / name), *arguments, **variables)

    return run


def require_program(name: str) -> str:
    """Its path; skips the test if the machine lacks it."""
    path = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")
    if path is None:
        pytest.skip(f"{name} is not installed on this machine")
    return path


def execute(command: list[str], folder: Path, **variables: str) -> str:
    """What the command prints; fails the test, with all that it said, unless it exits with 0."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("OPENAI_", "PSD_", "PYTHON"))}
    environment |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "HOME": str(folder), "NO_COLOR": "1"} | variables
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}\n{done.stderr[-6000:]}"
    return done.stdout
