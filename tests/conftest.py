"""Fixtures of every test: a checkpoint, and a server that many tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from psd_core.assets import demo_path
from server.tokenizer import Tokenizer
from tests.server.checkpoint import write_checkpoint
from tests.server.process import ServerProcess
from tests.server.reciter import FOLDER

# How fast the machine is says nothing about the code.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


def pytest_configure() -> None:
    """A slow machine is no fault of the code: neither deadlines nor the health check of slow generation."""
    settings.register_profile("project", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("project")


@pytest.fixture(scope="session")
def random_model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random checkpoint: it never stops by itself for long, and its text is broken UTF-8."""
    folder = tmp_path_factory.mktemp("random")
    write_checkpoint(folder)
    return folder


@pytest.fixture(scope="session")
def model_path(random_model_path: Path) -> Path:
    """The built-in model where it is installed, else a random one."""
    return demo_path() if (demo_path() / "model.safetensors").exists() else random_model_path


@pytest.fixture(scope="session")
def byte_tokenizer(random_model_path: Path) -> Tokenizer:
    """One token per byte."""
    return Tokenizer(random_model_path)


@pytest.fixture(scope="session")
def server(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that tests may load but must leave running."""
    with ServerProcess(model_path, tmp_path_factory.mktemp("server")) as process:
        yield process


@pytest.fixture(scope="session")
def random_server(
    server: ServerProcess, model_path: Path, random_model_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """A server whose answers are long and strange; the shared one if that has the random model anyway."""
    if model_path == random_model_path:
        yield server
        return
    with ServerProcess(random_model_path, tmp_path_factory.mktemp("random-server")) as process:
        yield process


@pytest.fixture(scope="session")
def reciter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with the model that recites; its template knows tools."""
    with ServerProcess(FOLDER, tmp_path_factory.mktemp("reciter")) as process:
        yield process
