"""What stands between server and client: curl, and nginx with its default buffering."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import pytest

from tests.clients.conftest import execute, require_program
from tests.deploy.nginx import nginx_config
from tests.server.process import ServerProcess, wait_until
from tests.server.sse import joined_text, parse_stream

BODY = {"model": "tiny", "prompt": "Write a story.", "ignore_eos": True, "stream": True}
LONG = BODY | {"max_tokens": 448, "psd": {"policy": "greedy", "draft_depth": 0, "cache": "none", "block_length": 8}}
NGINX = "server {{ listen unix:{folder}/nginx.sock; location / {{ proxy_pass {url}; }} }}"


def test_curl_prints_a_stream_as_it_comes(server: ServerProcess, tmp_path: Path) -> None:
    curl = require_program("curl")
    body = BODY | {"max_tokens": 40}
    said = execute(
        [curl, "-sSN", "--fail", "-H", "Content-Type: application/json", "-d", json.dumps(body),
         f"{server.url}/v1/completions"],
        tmp_path,
    )  # fmt: skip  # one option and its value per place
    whole = server.complete(**body | {"stream": False}).json()
    assert joined_text(parse_stream(said.encode())) == whole["choices"][0]["text"]


def test_curl_reads_the_probes(server: ServerProcess, tmp_path: Path) -> None:
    curl = require_program("curl")
    for path in ("/health", "/v1/models", "/version"):
        head = execute([curl, "-sSI", "--fail", f"{server.url}{path}"], tmp_path)
        assert head.startswith("HTTP/1.1 200")


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """The path of a socket may have a hundred characters only."""
    with TemporaryDirectory(prefix="nginx-") as folder:
        yield Path(folder)


@contextmanager
def nginx(program: str, url: str, folder: Path) -> Iterator[httpx.Client]:
    """nginx in front of a server, and a client that talks to it."""
    (folder / "nginx.conf").write_text(nginx_config(folder, NGINX.format(folder=folder, url=url)))
    process = subprocess.Popen([program, "-p", str(folder), "-c", str(folder / "nginx.conf")])
    try:
        wait_until(lambda: (folder / "nginx.sock").exists() or process.poll() is not None)
        assert process.poll() is None
        transport = httpx.HTTPTransport(uds=str(folder / "nginx.sock"))
        with httpx.Client(base_url="http://nginx", transport=transport, timeout=60) as client:
            yield client
    finally:
        process.terminate()
        process.wait(10)


def test_nginx_with_default_buffering_passes_chunks_on_at_once(
    random_server: ServerProcess, short_folder: Path
) -> None:
    program = require_program("nginx")
    with nginx(program, random_server.url, short_folder) as client:
        with client.stream("POST", "/v1/completions", json=LONG) as response:
            lines = response.iter_lines()
            first = json.loads(next(lines).removeprefix("data: "))
            assert first["choices"][0]["text"]
            running = random_server.metric("psd_requests_running")
            rest = [line for line in lines if line]
        assert running >= 1  # the first chunk was here while the others were still being made
        assert rest[-1] == "data: [DONE]"
        assert client.head("/health").status_code == 200
        assert client.get("/nope").json()["error"]["code"] == "unknown_path"


def test_a_client_that_leaves_nginx_frees_the_worker(random_server: ServerProcess, short_folder: Path) -> None:
    program = require_program("nginx")
    with nginx(program, random_server.url, short_folder) as client:
        with client.stream("POST", "/v1/completions", json=LONG) as response:
            next(response.iter_lines())
        wait_until(lambda: random_server.metric("psd_requests_running") == 0)
