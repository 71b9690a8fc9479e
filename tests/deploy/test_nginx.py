"""The reverse proxy: a real nginx with the project's file in front of a real server, over TLS."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from server.tuning import DEFAULTS
from tests.deploy.nginx import NginxProcess
from tests.deploy.ports import free_port
from tests.server.process import SLOW, ServerProcess, wait_until
from tests.server.sse import parse_stream

pytestmark = pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed: apt-get install nginx")

LONG = {"model": "tiny", "prompt": "a", "max_tokens": 256, "ignore_eos": True, "stream": True, "psd": SLOW}


@pytest.fixture(scope="module")
def proxy(random_server: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NginxProcess]:
    upstream = random_server.url.removeprefix("http://")
    with NginxProcess(upstream, tmp_path_factory.mktemp("nginx")) as process:
        yield process


def test_nginx_accepts_the_file(proxy: NginxProcess) -> None:
    result = subprocess.run([*proxy.command, "-t"], capture_output=True, text=True, timeout=30)
    assert result.returncode == 0, result.stderr
    assert "[warn]" not in result.stderr


def test_chunks_pass_while_the_server_still_computes(proxy: NginxProcess, random_server: ServerProcess) -> None:
    with proxy.client.stream("POST", "/v1/completions", json=LONG) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        pieces = response.iter_bytes()
        first = next(pieces)
        assert first.startswith(b"data: ")
        assert random_server.metric("psd_requests_running") >= 1  # the answer is not complete, yet text is here
        rest = b"".join(pieces)
    assert parse_stream(first + rest)


def test_a_client_that_leaves_ends_its_request(proxy: NginxProcess, random_server: ServerProcess) -> None:
    sample = 'psd_requests_total{endpoint="completions",finish_reason="cancelled"}'
    before = random_server.metric(sample)
    with proxy.client.stream("POST", "/v1/completions", json=LONG) as response:
        next(response.iter_bytes())
    wait_until(lambda: random_server.metric(sample) == before + 1)


def test_an_answer_is_the_one_without_a_proxy(proxy: NginxProcess, random_server: ServerProcess) -> None:
    body = {"model": "tiny", "prompt": "a", "max_tokens": 16, "seed": 1}
    direct = random_server.client.post("/v1/completions", json=body).json()
    passed = proxy.client.post("/v1/completions", json=body).json()
    assert passed["choices"] == direct["choices"]


def test_errors_of_the_server_pass_unchanged(proxy: NginxProcess, random_server: ServerProcess) -> None:
    body = {"model": "none", "prompt": "a"}
    direct = random_server.client.post("/v1/completions", json=body)
    passed = proxy.client.post("/v1/completions", json=body)
    assert (passed.status_code, passed.json()) == (404, direct.json())


def test_metrics_are_not_for_the_public(proxy: NginxProcess) -> None:
    assert proxy.client.get("/metrics").status_code == 404
    assert proxy.client.get("/ready").status_code == 200


def test_plain_http_is_sent_to_tls_with_its_body(proxy: NginxProcess) -> None:
    response = httpx.post(f"{proxy.plain_url}/v1/completions", json={})
    assert response.status_code == 308
    assert response.headers["location"] == "https://127.0.0.1/v1/completions"


def test_a_large_body_is_refused_in_the_api_s_form(proxy: NginxProcess) -> None:
    limit = DEFAULTS.max_body_bytes
    response = proxy.client.post("/v1/completions", content=b" " * (limit + 1))
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "body_too_large"
    accepted = proxy.client.post("/v1/completions", content=b" " * limit)
    assert accepted.status_code == 400


def test_a_flood_is_refused_in_the_api_s_form_and_others_are_not(proxy: NginxProcess) -> None:
    def ask(_: int) -> httpx.Response:
        return proxy.client.get("/v1/models", headers={"Authorization": "Bearer flood"})

    with ThreadPoolExecutor(16) as executor:
        responses = list(executor.map(ask, range(400)))
    refused = [response for response in responses if response.status_code == 429]
    assert 0 < len(refused) < 400
    assert all(response.json()["error"]["code"] == "queue_full" for response in refused)
    assert all(response.headers["retry-after"] == "1" for response in refused)
    other = proxy.client.get("/v1/models", headers={"Authorization": "Bearer other"})
    assert other.status_code == 200


def test_a_server_that_is_away_is_a_503_in_the_api_s_form(tmp_path: Path) -> None:
    with NginxProcess(f"127.0.0.1:{free_port()}", tmp_path) as process:
        response = process.client.post("/v1/completions", json={})
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "worker_unavailable"
    assert response.headers["retry-after"] == "1"
