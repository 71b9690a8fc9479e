"""The container files: their instructions do what they say as far as a machine without an engine can tell.

`docker/rehearse` builds and runs the image for real; the last test calls it where PSD_TEST_IMAGE=1 asks for it,
since it takes minutes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TypedDict

import pytest
import yaml

from server.flags import FLAGS
from server.tuning import DEFAULTS
from tests.deploy.dockerfile import Instruction, arguments_of, read_stages, variables_of
from tests.server.process import ServerProcess, wait_until

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
DOCKERFILES = [ROOT / "docker" / "Dockerfile.cpu", ROOT / "docker" / "Dockerfile.cuda"]
COMPOSE_FILES = [ROOT / "docker" / "compose.yaml", ROOT / "docker" / "compose.cuda.yaml"]

each_dockerfile = pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.suffix[1:])


def final_stage(path: Path) -> list[Instruction]:
    return read_stages(path)[-1]


def test_hadolint_finds_nothing() -> None:
    result = subprocess.run([BIN / "hadolint", *DOCKERFILES], capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stdout) == (0, ""), result.stdout + result.stderr


def test_the_cuda_image_differs_from_the_tried_one_in_variables_alone() -> None:
    cpu, cuda = ([item for stage in read_stages(path) for item in stage] for path in DOCKERFILES)
    assert [item for item in cuda if item.word != "ENV"] == [item for item in cpu if item.word != "ENV"]
    added = variables_of(cuda).items() - variables_of(cpu).items()
    assert dict(added).keys() == {"NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "PSD_DEVICE"}


@each_dockerfile
def test_the_image_is_small_and_not_root(path: Path) -> None:
    build, final = read_stages(path)
    assert final[0].arguments.startswith("python:${PYTHON_VERSION}-slim")
    assert not any("install" in line for line in arguments_of(final, "RUN"))
    (user,) = arguments_of(final, "USER")
    assert all(int(part) > 0 for part in user.split(":"))
    assert [line for line in arguments_of(final, "COPY") if line.startswith("--from=build")]
    assert arguments_of(final, "VOLUME") == ['["/models"]']
    assert not arguments_of(build, "HEALTHCHECK")


@each_dockerfile
def test_everything_copied_is_there_and_in_the_build_context(path: Path) -> None:
    context = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied: set[str] = set()
    for stage in read_stages(path):
        for line in arguments_of(stage, "COPY"):
            if not line.startswith("--from"):
                copied |= set(line.split()[:-1])
    assert copied == context
    assert all((ROOT / name).exists() for name in copied)


@each_dockerfile
@pytest.mark.parametrize("extra", ["", "ray"])
def test_the_listed_dependencies_are_those_of_the_package(path: Path, extra: str) -> None:
    """The first half of the line that installs them, run by the shell it was written for."""
    (line,) = [line for line in arguments_of(read_stages(path)[0], "RUN") if "requirements.txt &&" in line]
    command = line.partition(" > ")[0]
    assert command.startswith("python -c ")
    listed = subprocess.run(
        ["sh", "-c", command.replace("python", sys.executable, 1)],
        cwd=ROOT,
        env={"EXTRA": extra},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout.splitlines()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert listed == project["dependencies"] + project["optional-dependencies"].get(extra, [])


@each_dockerfile
def test_every_shell_line_parses(path: Path) -> None:
    for stage in read_stages(path):
        for line in arguments_of(stage, "RUN"):
            subprocess.run(["sh", "-n", "-c", line], check=True, timeout=10)


@each_dockerfile
def test_the_variables_are_flags_of_the_server(path: Path) -> None:
    known = {flag.variable for flag in FLAGS}
    assert {name for name in variables_of(final_stage(path)) if name.startswith("PSD_")} <= known


@each_dockerfile
def test_the_health_check_tells_a_live_server_from_none(path: Path, server: ServerProcess) -> None:
    (check,) = [item for item in final_stage(path) if item.word == "HEALTHCHECK"]
    assert check.exec_form == ["python", "/opt/psd/healthcheck.py"]
    command = [sys.executable, str(ROOT / "docker" / "healthcheck.py")]

    def status(port: str) -> int:
        environment = {"PATH": os.environ["PATH"], "PSD_PORT": port}
        return subprocess.run(command, env=environment, capture_output=True, timeout=30).returncode

    assert status(server.url.rpartition(":")[2]) == 0
    assert status("1") == 1


def test_the_image_command_serves_and_drains(tmp_path: Path) -> None:
    """ENTRYPOINT, CMD, ENV and STOPSIGNAL of the CPU image, from the same code; with its user where that may run us."""
    final = final_stage(DOCKERFILES[0])
    command = [word for item in final if item.word in ("ENTRYPOINT", "CMD") for word in item.exec_form]
    assert command == ["psd", "serve"]
    assert arguments_of(final, "STOPSIGNAL") == ["SIGTERM"]
    variables = variables_of(final) | {"PSD_HOST": "127.0.0.1", "PSD_PORT": "0", "HF_HOME": str(tmp_path)}
    log = tmp_path / "log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "server.cli", *command[1:]],
            cwd=ROOT,
            env=variables | {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1"},
            stdout=output,
            stderr=subprocess.STDOUT,
            **as_user(final),
        )
    try:
        wait_until(lambda: "psd-demo" in log.read_text() or process.poll() is not None, 120)
        assert process.poll() is None, log.read_text()
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


class RunAs(TypedDict, total=False):
    """Options of Popen."""

    user: int
    group: int


def as_user(stage: list[Instruction]) -> RunAs:
    """Options of Popen for the image's user; none where it must not read this Python, or we must not become it."""
    (named,) = arguments_of(stage, "USER")
    user, group = map(int, named.split(":"))
    options: RunAs = {"user": user, "group": group}
    try:
        subprocess.run([sys.executable, "-c", "import server.cli"], cwd=ROOT, check=True, timeout=60, **options)
    except (PermissionError, subprocess.CalledProcessError):
        return {}
    return options


def test_the_compose_files_follow_the_specification() -> None:
    command: list[str | Path] = [BIN / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", *COMPOSE_FILES]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_compose_file_mounts_what_exists_and_hardens_the_server() -> None:
    compose = yaml.safe_load(COMPOSE_FILES[0].read_text())
    services = compose["services"]
    for service in services.values():
        for mount in service["volumes"]:
            source = mount.split(":")[0]
            assert source in compose["volumes"] or (ROOT / "docker" / source).is_file(), mount
        for published in service["ports"]:
            assert "127.0.0.1:" in published
    psd = services["psd"]
    assert psd["read_only"] is True
    assert psd["cap_drop"] == ["ALL"]
    assert int(psd["stop_grace_period"].removesuffix("s")) > DEFAULTS.drain_seconds
    known = {flag.variable for flag in FLAGS}
    assert {name for name in psd["environment"] if name.startswith("PSD_")} <= known


def test_grafana_is_provisioned_with_the_dashboard_and_its_data_source() -> None:
    services = yaml.safe_load(COMPOSE_FILES[0].read_text())["services"]
    mounts = dict(mount.split(":")[:2] for mount in services["grafana"]["volumes"])
    (datasource,) = yaml.safe_load((ROOT / "docker/grafana/datasources.yaml").read_text())["datasources"]
    (provider,) = yaml.safe_load((ROOT / "docker/grafana/dashboards.yaml").read_text())["providers"]
    assert datasource["url"] == "http://prometheus:9090"
    dashboard = mounts["../deploy/grafana/psd.json"]
    assert str(Path(dashboard).parent) == provider["options"]["path"]
    assert services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"] == dashboard
    assert json.loads((ROOT / "deploy/grafana/psd.json").read_text())["uid"] == "psd"


@pytest.mark.skipif(os.environ.get("PSD_TEST_IMAGE") != "1", reason="takes minutes; PSD_TEST_IMAGE=1 runs it")
def test_the_image_builds_runs_and_is_healthy() -> None:
    subprocess.run([ROOT / "docker" / "rehearse"], check=True, timeout=1800)
