"""Error codes: each one that the server's source can send is a label of its own in the metrics."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import server
from server.metrics import ERROR_CODES

CODE_PLACE = {"ApiError": 1, "unavailable": 0, "invalid": 2}  # which argument is the code


def codes(source: str) -> Iterator[str]:
    """The literal codes of every error that is built in a source."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CODE_PLACE:
            place = CODE_PLACE[node.func.id]
            if place < len(node.args) and isinstance(code := node.args[place], ast.Constant):
                assert isinstance(code.value, str)
                yield code.value


def test_every_code_is_counted_under_its_own_name() -> None:
    folder = Path(str(server.__file__)).parent
    found = {code for path in folder.rglob("*.py") for code in codes(path.read_text(encoding="utf-8"))}
    assert {"too_many_connections", "invalid_json", "worker_died", "queue_timeout"} <= found
    assert found <= set(ERROR_CODES)
