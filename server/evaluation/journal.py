"""The file of a run: its settings, its cells, and every answer as it came, one JSON object per line.

An interrupted run goes on where it stopped: what has an answer is not asked again. A line that was cut off when the run
was killed is dropped. A run with other settings is refused: its answers could not stand in one table.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from psd_core.errors import ConfigError
from server.body import JsonObject
from server.evaluation.answer import Answer
from server.evaluation.cell import Cell

BEGINNING: Final = b'{"settings":'  # of the first line, as `_write` writes it


class Journal:
    """Answers by cell and problem. Owns the file; use as a context manager."""

    def __init__(self, path: Path, settings: JsonObject, restarts: bool = False) -> None:
        """ConfigError if another run is writing the file, or settings differ.

        settings   whatever must be the same in every session of the run
        restarts   throw away what is in the file, once it is known to be nobody else's
        """
        self._path = path
        self._cells: dict[str, object] = {}
        self.answers: dict[str, dict[str, Answer]] = {}
        # As they will be read again: a tuple comes back as a list.
        self._settings: JsonObject = json.loads(json.dumps(settings))
        self._file = path.open("a", encoding="utf-8")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if restarts:
                self._file.truncate(0)
            if path.stat().st_size:
                self._read()
            else:
                self._write({"settings": self._settings})
        except BlockingIOError:
            self._file.close()
            raise ConfigError("output", f"{path} is being written by another run; take another --output") from None
        except BaseException:  # Ctrl-C while a long journal is read, too: nobody else will close it
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file.close()

    def begin(self, cell: Cell) -> None:
        """Note a cell's settings. ConfigError if the run has another cell of that name."""
        settings = json.loads(json.dumps(cell.settings))
        before = self._cells.setdefault(cell.name, settings)
        if before != settings:
            raise ConfigError(
                "output",
                f"{self._path} has a cell {cell.name!r} with other settings ({_difference(before, settings)}); "
                "name it otherwise, take another --output, or start anew with --restart",
            )
        if cell.name not in self.answers:
            self.answers[cell.name] = {}
            self._write({"cell": {"name": cell.name, "settings": settings}})

    def add(self, answer: Answer) -> None:
        """Keep an answer; it is in the file when this returns."""
        self.answers[answer.cell][answer.problem] = answer
        self._write({"answer": answer})

    def seconds(self, cell: str) -> float:
        """Decoding time of a cell so far."""
        return max((answer.at_seconds for answer in self.answers.get(cell, {}).values()), default=0.0)

    def _write(self, line: Mapping[str, object]) -> None:
        # ASCII alone: half a surrogate pair, which a server may send, has no UTF-8.
        self._file.write(json.dumps(msgspec.to_builtins(line)) + "\n")
        self._file.flush()

    def _read(self) -> None:
        content = self._path.read_bytes()
        if b"\n" not in content and content.startswith(BEGINNING):  # cut off before anything was said
            self._file.truncate(0)
            self._write({"settings": self._settings})
            return
        whole = content.rpartition(b"\n")[0] + b"\n"
        lines = whole.splitlines()
        number = 1
        try:
            self._check(json.loads(lines[0])["settings"])
            for line in lines[1:]:
                number += 1
                entry: dict[str, Any] = json.loads(line)
                if "cell" in entry:
                    self._cells[entry["cell"]["name"]] = entry["cell"]["settings"]
                    self.answers.setdefault(entry["cell"]["name"], {})
                else:
                    answer = msgspec.convert(entry["answer"], Answer)
                    self.answers[answer.cell][answer.problem] = answer
        except (ValueError, KeyError, IndexError, TypeError, RecursionError) as error:
            raise ConfigError(
                "output",
                f"{self._path} is no journal of a run (line {number}: {type(error).__name__}: {error}); take another "
                "--output, or start anew with --restart",
            ) from None
        if len(whole) != len(content):
            with self._path.open("r+b") as file:
                file.truncate(len(whole))

    def _check(self, before: object) -> None:
        if before != self._settings:
            raise ConfigError(
                "output",
                f"{self._path} belongs to a run with other settings ({_difference(before, self._settings)}); "
                "take another --output, or start anew with --restart",
            )


def _difference(before: object, now: object) -> str:
    """What differs, key by key."""
    if not isinstance(before, dict) or not isinstance(now, dict):
        return f"{before!r}, now {now!r}"
    return ", ".join(
        f"{key}: {before.get(key)!r}, now {now.get(key)!r}"
        for key in dict.fromkeys((*before, *now))
        if before.get(key) != now.get(key)
    )
