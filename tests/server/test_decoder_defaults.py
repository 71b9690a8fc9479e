"""The server's default decoder beneath what a request sets itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.process import ServerProcess


@pytest.fixture(scope="module")
def decided(random_model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    flags = ["--draft-increment", "subsets", "--edit-threshold", "0.9"]
    with ServerProcess(random_model_path, tmp_path_factory.mktemp("decided"), flags) as process:
        yield process


@pytest.mark.parametrize(
    "psd",
    [
        {"acceptance": "token", "draft_depth": 2},
        {"acceptance": "subset"},
        {"policy": "lopa", "branches": 2},
        {"edit_threshold": 0.5},
        {},
    ],
)
def test_a_default_that_a_request_rules_out_gives_way(decided: ServerProcess, psd: dict[str, object]) -> None:
    response = decided.complete(max_tokens=20, ignore_eos=True, psd=psd)
    assert response.status_code == 200, response.text
    assert psd.items() <= response.json()["psd"].items()


@pytest.mark.parametrize(
    ("psd", "param"),
    [
        ({"acceptance": "token", "draft_increment": "subsets"}, "draft_increment"),
        ({"acceptance": "token", "edit_threshold": 0.5}, "edit_threshold"),
        ({"acceptance": "token", "max_edit_passes": 3}, "edit_threshold"),
        ({"policy": "lopa", "max_edit_passes": 3}, "edit_threshold"),
    ],
)
def test_what_a_request_itself_rules_out_is_refused(decided: ServerProcess, psd: dict[str, object], param: str) -> None:
    response = decided.complete(psd=psd)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == f"psd.{param}"
