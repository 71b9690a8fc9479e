"""The lock: what is installed for this project, however indirectly, is pinned, and the pins fit pyproject's ranges."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
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


def test_everything_installed_for_the_project_is_pinned_and_is_that_version() -> None:
    pinned = pins()
    wrong = [
        f"{name} {version}, pinned {pinned.get(name)}"
        for name, version in installed(declared())
        if name not in pinned or pinned[name] != Version(version.public)
    ]
    assert not wrong
