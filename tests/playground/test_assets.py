"""The page's files as they are served: small, complete, under a strict policy, and off when asked."""

from __future__ import annotations

import json
import re
from pathlib import Path

import httpx

from psd_core.config import ACCEPTANCE_NAMES, CACHE_NAMES, POLICY_NAMES
from server.playground import read_assets
from server.schema import PsdFields
from tests.server.process import ServerProcess, wait_until

MAX_BYTES = 150 * 1024


def test_the_page_weighs_little() -> None:
    assert sum(len(asset.content) for asset in read_assets()) <= MAX_BYTES


def test_the_page_is_served_under_a_strict_policy(server: ServerProcess) -> None:
    for asset in read_assets():
        response = server.client.get(asset.path)
        assert response.status_code == 200
        assert response.content == asset.content
        assert response.headers["content-type"] == asset.media_type
        assert response.headers["x-content-type-options"] == "nosniff"
        policy = response.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert server.client.head(asset.path).status_code == 200
        known = server.client.get(asset.path, headers={"If-None-Match": response.headers["etag"]})
        assert (known.status_code, known.content) == (304, b"")


def test_nothing_is_inline_and_nothing_comes_from_elsewhere() -> None:
    for asset in read_assets():
        text = asset.content.decode()
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text), asset.name
        outside = re.findall(r"https?://[^\s\"')]+", text)
        assert set(outside) <= {"http://www.w3.org/2000/svg"}, asset.name
        if asset.name.endswith(".html"):
            assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)", text)


def test_every_file_is_used(server: ServerProcess) -> None:
    page = "".join(asset.content.decode() for asset in read_assets())
    for asset in read_assets():
        assert asset.path == "/" or asset.name in page
    linked = re.findall(r"(?:src|href)=\"(playground/[^\"]+)\"", server.client.get("/").text)
    assert linked
    assert all(server.client.get(f"/{path}").status_code == 200 for path in linked)


def test_the_page_needs_no_key_but_the_api_does(keyed: ServerProcess) -> None:
    assert keyed.client.get("/").status_code == 200
    assert keyed.client.get("/playground/app.js").status_code == 200
    assert keyed.client.get("/playground/../v1/models").status_code == 401
    assert keyed.client.get("/playground/no-such-file").status_code == 401
    assert keyed.client.get("/metrics").status_code == 401


def test_the_page_can_be_switched_off(random_model_path: Path, tmp_path: Path) -> None:
    with ServerProcess(random_model_path, tmp_path, ["--no-playground"], waits_ready=False) as server:
        for path in ("/", "/playground/app.js"):
            answer = httpx.get(server.url + path)
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_path")
        wait_until(lambda: "curl" in server.log, 60)
        assert "browser" not in server.log


def test_the_examples_are_problems_that_training_left_out() -> None:
    (examples,) = (asset.content.decode() for asset in read_assets() if asset.name == "examples.js")
    built_in, _, _ = examples.partition("const GENERAL")
    chips = re.findall(r"^  \[\"(\w+)\", (['\"])(.*)\2\],$", built_in, re.MULTILINE)
    lines = (Path(__file__).parents[2] / "demo_model" / "examples.jsonl").read_text().splitlines()
    tasks = {entry["prompt"]: entry["task"] for entry in map(json.loads, lines)}
    kinds = {"Story": "prose", "Sum": "word", "JSON": "json", "Code": "code", "Note": "prose"}
    assert {name: tasks.get(prompt.replace("\\n", "\n")) for name, _, prompt in chips} == kinds


def test_every_decoder_setting_has_a_control_with_all_its_choices() -> None:
    (knobs,) = (asset.content.decode() for asset in read_assets() if asset.name.endswith("knobs.js"))
    shown, _, _ = knobs.partition("REQUEST_KNOBS")
    assert set(re.findall(r'name: "(\w+)"', shown)) == set(PsdFields.model_fields)
    for names in (POLICY_NAMES, ACCEPTANCE_NAMES, CACHE_NAMES):
        assert [name for name in names if not re.search(rf'^  {name}: "', shown, re.MULTILINE)] == []
