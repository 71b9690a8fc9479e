"""Grids of decoders: ready-made by name, from a file, or cell by cell from the command line.

A file is TOML (or the same as JSON): a list `cell` of tables with decoder settings, an optional `name` and `series`.
A setting with a list of values makes a cell for each; a name may hold them as {setting}.
"""

from __future__ import annotations

import itertools
import json
import tomllib
from collections.abc import Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from psd_core.config import POLICY_NAMES
from psd_core.errors import ConfigError
from server.evaluation.cell import NAMES, Cell, Settings, make_cell


def grid_names() -> list[str]:
    """The ready-made grids."""
    entries = files("server.evaluation").joinpath("grids").iterdir()
    return sorted(entry.name.removesuffix(".toml") for entry in entries if entry.name.endswith(".toml"))


def load_grid(grids: Sequence[str], decoders: Sequence[str]) -> list[Cell]:
    """The cells of all grids, then those given one by one; the same cell counts once.

    ConfigError if one cannot be read, or if two different decoders have one name.
    """
    cells: dict[str, Cell] = {}
    for cell in itertools.chain(*map(read_grid, grids), map(parse_cell, decoders)):
        before = cells.setdefault(cell.name, cell)
        if before.settings != cell.settings:
            raise ConfigError("decoder", f"two decoders are named {cell.name!r}: {before.settings}, {cell.settings}")
    return list(cells.values())


def read_grid(grid: str) -> list[Cell]:
    """The cells of a ready-made grid or of a file."""
    if grid in grid_names():
        text = files("server.evaluation").joinpath("grids", f"{grid}.toml").read_text(encoding="utf-8")
        return _cells(tomllib.loads(text), f"grid {grid}")
    path = Path(grid)
    if not path.is_file():
        raise ConfigError("grid", f"--grid must be a file or one of {', '.join(grid_names())}; got {grid!r}")
    try:
        text = path.read_text(encoding="utf-8")
        content = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError("grid", f"{grid} cannot be read: {error}") from None
    return _cells(content, grid)


def parse_cell(text: str) -> Cell:
    """[name=]policy[:setting=value,…] as a cell."""
    head, _, tail = text.partition(":")
    name, equals, policy = head.rpartition("=")
    if policy.strip() not in POLICY_NAMES:
        raise ConfigError(
            "decoder",
            f"--decoder must be [NAME=]POLICY[:SETTING=VALUE,…], with a policy of {', '.join(POLICY_NAMES)}; "
            f"got {text!r}",
        )
    given: dict[str, object] = {"policy": policy.strip()}
    for part in filter(None, (part.strip() for part in tail.split(","))):
        key, is_set, value = part.partition("=")
        if not is_set:
            raise ConfigError("decoder", f"--decoder {text!r}: {part!r} is not SETTING=VALUE")
        given[key.strip()] = _value(value.strip())
    try:
        return make_cell(given, name.strip() if equals else None)
    except ConfigError as error:
        raise ConfigError(error.param, f"--decoder {text!r}: {error.message}") from None


def _value(text: str) -> object:
    for parse in (int, float):
        try:
            return parse(text)
        except ValueError:
            continue
    return text


def _cells(content: Any, origin: str) -> list[Cell]:
    tables = content.get("cell") if isinstance(content, dict) else None
    if not isinstance(tables, list) or not tables or not all(isinstance(table, dict) for table in tables):
        raise ConfigError("grid", f"{origin} must hold a list `cell` of tables, and at least one")
    unknown = ", ".join(sorted(set(content) - {"cell"}))
    if unknown:
        raise ConfigError("grid", f"{origin} must hold nothing but `cell`, got {unknown}")
    cells: list[Cell] = []
    for number, table in enumerate(tables, 1):
        try:
            cells += _product(table)
        except ConfigError as error:
            raise ConfigError(error.param, f"{origin}, cell {number}: {error.message}") from None
    return cells


def _product(table: dict[str, Any]) -> Iterator[Cell]:
    """A cell for every combination of the values that are lists."""
    name, series = table.get("name"), table.get("series")
    for key, value in (("name", name), ("series", series)):
        if value is not None and (not isinstance(value, str) or not value):
            raise ConfigError(key, f"{key} must be a text and not empty, got {value!r}")
    choices = {
        key: value if isinstance(value, list) else [value]
        for key, value in table.items()
        if key not in ("name", "series")
    }
    for key, values in choices.items():
        if not values:
            raise ConfigError(key, f"{key} must not be an empty list")
    for combination in itertools.product(*choices.values()):
        given: Settings = dict(zip(choices, combination, strict=True))
        yield make_cell(given, _filled(name, given), _filled(series, given))


def _filled(text: str | None, given: Settings) -> str | None:
    if text is None:
        return None
    for key in NAMES:
        text = text.replace(f"{{{key}}}", str(given.get(key, f"{{{key}}}")))
    return text
