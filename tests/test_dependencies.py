"""The lock: what is installed for this project, however indirectly, is pinned, and the pins fit pyproject's ranges."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution, distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
FOLDERS = sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})  # without what setuptools brings along
UNPINNED = ("nvidia-", "triton", "cuda-", "setuptools")  # as torch's build wants them, and what pip brings itself


def pins() -> dict[str, Version]:
    """Versions of constraints.txt by name."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): Version(version) for name, version in pairs}


def declared() -> list[Requirement]:
    """pyproject's requirements, those of the extras included; other clients are tested in an environment of theirs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [texts for name, texts in project["optional-dependencies"].items() if name != "clients"]
    return [Requirement(text) for text in (*project["dependencies"], *(text for extra in extras for text in extra))]


def installed(requirements: list[Requirement]) -> Iterator[tuple[str, Version]]:
    """Name and version of everything that the requirements bring in, as far as it is installed."""
    seen: set[str] = set()
    waiting = list(requirements)
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name in seen or name.startswith(UNPINNED):
            continue
        seen.add(name)
        try:
            found = distribution(name)
        except PackageNotFoundError:  # for another platform, or of an extra that is not installed
            continue
        yield name, Version(found.version)
        for text in found.requires or []:
            needed = Requirement(text)
            extras = ({"extra": extra} for extra in (requirement.extras or {""}))
            if needed.marker is None or any(needed.marker.evaluate(extra) for extra in extras):
                waiting.append(needed)


def test_every_declared_dependency_is_pinned_within_its_range() -> None:
    pinned = pins()
    for requirement in declared():
        name = canonicalize_name(requirement.name)
        assert name in pinned, f"{name} is not in constraints.txt"
        assert requirement.specifier.contains(pinned[name], prereleases=True), f"{name} is pinned outside its range"


def test_every_extra_that_is_named_exists() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"].keys()
    said = re.compile(r"(?:psd-server|psd_server|'\.)\[(\w+)\]|scripts/setup (\w+)")
    texts = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("server/**/*.py"), *ROOT.glob("psd_core/**/*.py")]
    named = {found[1] or found[2] for path in texts for found in said.finditer(path.read_text(encoding="utf-8"))}
    assert {"plots", "test"} <= named <= extras


def test_everything_installed_for_the_project_is_pinned_and_is_that_version() -> None:
    pinned = pins()
    wrong = [
        f"{name} {version}, pinned {pinned.get(name)}"
        for name, version in installed(declared())
        if name not in pinned or pinned[name] != Version(version.public)
    ]
    assert not wrong


@pytest.mark.skipif(
    Path(sys.prefix).resolve() != (ROOT / ".venv").resolve(), reason="not the environment that scripts/setup makes"
)
def test_nothing_else_is_installed() -> None:
    own = {"pip", "wheel", "psd-server"}
    names = {canonicalize_name(found.metadata["Name"]) for found in distributions(path=FOLDERS)}
    extra = {name for name in names - own - pins().keys() if not name.startswith(UNPINNED)}
    assert not extra, "neither pinned nor needed: pin them in constraints.txt or uninstall them"


def test_pins_are_exact_sorted_and_come_from_the_index_alone() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert lines == sorted(lines, key=str.lower)
    for line in lines:
        requirement = Requirement(line)
        assert requirement.url is None
        assert requirement.marker is None
        assert [pin.operator for pin in requirement.specifier] == ["=="], line
        assert "*" not in line


@pytest.mark.parametrize(
    ("said", "status", "words"),
    [
        ("exit 0", 0, "no known weakness"),
        ('echo "torch 1 PYSEC-1" > "$file"; exit 1', 1, "PYSEC-1"),
        ("echo ConnectionError >&2; exit 1", 0, "cannot reach its database"),
    ],
)
def test_the_audit_tells_weaknesses_from_a_database_out_of_reach(
    tmp_path: Path, said: str, status: int, words: str
) -> None:
    """A stand-in for pip-audit, which finds a weakness, finds none, or reaches nothing; and pytest is not run again."""
    stand_ins = {
        "pip-audit": f'while [ "$1" != --output ]; do shift; done; file="$2"; {said}',
        "python": "exit 0",
    }
    for name, script in stand_ins.items():
        (tmp_path / name).write_text(f"#!/usr/bin/env bash\n{script}\n")
        (tmp_path / name).chmod(0o755)
    folder = tmp_path / "project"
    (folder / "scripts").mkdir(parents=True)
    (folder / "scripts" / "audit").write_bytes((ROOT / "scripts" / "audit").read_bytes())
    environment = os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    command = ["bash", str(folder / "scripts" / "audit"), "--installed"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=False)
    assert (ended.returncode, words in ended.stderr) == (status, True), ended.stderr
