"""Which answers are right, remembered in a file: the same text to the same problem is judged once per run."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from os import cpu_count
from pathlib import Path

from server.evaluation.judge import Runner, judge
from server.evaluation.problem import Problem


class Grades:
    """Verdicts by problem, text, extraction and, of programs, limits. Owns the file."""

    def __init__(self, path: Path, extract: re.Pattern[str] | None, runner: Runner | None) -> None:
        self._path = path
        self._extract = extract
        self._runner = runner
        self._known: dict[str, bool] = {}
        if path.exists():
            for line in path.read_bytes().splitlines():
                entry = _read(line)
                if entry is not None:
                    self._known[entry[0]] = entry[1]

    def judge(self, answers: Iterable[tuple[Problem, str]], on_judged: Callable[[], object]) -> list[bool]:
        """Verdicts of (problem, text) pairs, in order. on_judged: called once per pair."""
        pairs = list(answers)
        keys = [self._key(problem, text) for problem, text in pairs]
        missing = {key: pair for key, pair in zip(keys, pairs, strict=True) if key not in self._known}
        with ThreadPoolExecutor(cpu_count() or 1) as threads, self._path.open("a", encoding="utf-8") as file:
            for key, is_right in zip(missing, threads.map(self._judge, missing.values()), strict=True):
                self._known[key] = is_right
                file.write(json.dumps([key, is_right]) + "\n")
                on_judged()
        for _ in range(len(pairs) - len(missing)):
            on_judged()
        return [self._known[key] for key in keys]

    def _judge(self, pair: tuple[Problem, str]) -> bool:
        problem, text = pair
        return judge(problem.check, text, self._extract, self._runner)

    def _key(self, problem: Problem, text: str) -> str:
        pattern = "" if self._extract is None else self._extract.pattern
        limits = repr(self._runner.limits) if self._runner is not None and problem.runs_code else ""
        said = "\0".join((repr(problem.check), pattern, limits, text))
        return hashlib.sha256(said.encode(errors="replace")).hexdigest()


def _read(line: bytes) -> tuple[str, bool] | None:
    """A key and its verdict; None of a line that a killed run has left half written."""
    try:
        match json.loads(line):
            case [str(key), bool(is_right)]:
                return key, is_right
    except (ValueError, RecursionError):
        pass
    return None
