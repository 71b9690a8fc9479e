"""Keys from a file, limits per key, TLS, a path prefix, and logs that hold nothing they must not."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import signal
import ssl
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from psd_core.errors import ConfigError
from server.logs import JsonFormatter, TextFormatter
from server.settings import resolve
from tests.server.process import SLOW, ServerProcess, wait_until

TLS = Path(__file__).parents[1] / "data" / "tls"
SECRET = "Zebra-Kumquat-1234"
PROMPT = "my prompt is Quixotic-Marmalade"


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def write_keys(path: Path, *lines: str) -> str:
    path.write_text("\n".join(lines))
    return str(path)


def hashed(key: str) -> str:
    return f"sha256:{hashlib.sha256(key.encode()).hexdigest()}"


@pytest.fixture(scope="module")
def secured(random_model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Behind a proxy's prefix, with hashed keys, limits per key, and JSON logs that say everything they can."""
    folder = tmp_path_factory.mktemp("secured")
    keys = write_keys(folder / "keys", "# keys", f"{hashed(SECRET)} alice", "", f"{hashed('bob-key')}  bob # comment")
    flags = ["--api-key-file", keys, "--log-format", "json", "--log-level", "debug", "--root-path", "/llm"]
    flags += ["--max-key-seqs", "2", "--max-key-requests", "40", "--queue-timeout", "20"]
    flags += ["--allowed-origins", "https://app.example"]
    with ServerProcess(random_model_path, folder, flags, waits_ready=False) as process:
        process.url = process.url.removesuffix("/llm")
        process.client.base_url = httpx.URL(process.url)
        wait_until(process.is_ready, 120)
        yield process


def lines_of(server: ServerProcess) -> list[dict[str, Any]]:
    """The log's objects; the banner is no part of the log."""
    return [json.loads(line) for line in server.log.splitlines() if line.startswith("{")]


def finished_line(server: ServerProcess, request_id: str) -> dict[str, Any]:
    """The one line of a finished request."""

    def found() -> list[dict[str, Any]]:
        wanted = ("request finished", request_id)
        return [line for line in lines_of(server) if (line["message"], line["request_id"]) == wanted]

    wait_until(lambda: bool(found()), 10)
    (line,) = found()
    return line


def test_a_hashed_key_opens_and_its_hash_does_not(secured: ServerProcess) -> None:
    for path in ("/v1/models", "/llm/v1/models"):
        assert secured.client.get(path, headers=bearer(SECRET)).status_code == 200
    for key in (hashed(SECRET), hashed(SECRET).removeprefix("sha256:"), "alice", SECRET.lower(), f"{SECRET}x", "x"):
        assert secured.client.get("/v1/models", headers=bearer(key)).status_code == 401


@pytest.mark.parametrize("scheme", ["bearer", "BEARER", "Bearer  "])
def test_the_scheme_is_read_without_regard_to_case(secured: ServerProcess, scheme: str) -> None:
    header = {"Authorization": f"{scheme} {SECRET}"}
    assert secured.client.get("/v1/models", headers=header).status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/version",
        "/metrics",
        "/docs",
        "/tokenize",
        "/health/x",
        "/llm",
        "/llm/version",
        "//health",
    ],
)
def test_every_path_but_the_probes_is_closed_behind_a_prefix_too(secured: ServerProcess, path: str) -> None:
    for method in ("GET", "POST", "PUT", "DELETE", "OPTIONS"):
        response = secured.client.request(method, secured.url + path)
        assert response.status_code == 401, path
        assert response.headers["www-authenticate"] == "Bearer"
        assert response.headers["x-request-id"]


def test_the_probes_are_open_behind_a_prefix(secured: ServerProcess) -> None:
    for path in ("/health", "/ready", "/llm/health", "/llm/ready", "/health/"):
        assert secured.client.get(path).status_code == 200, path


def test_a_foreign_origin_gets_no_cors_headers(secured: ServerProcess) -> None:
    asked = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    preflight = secured.client.options("/v1/completions", headers=asked)
    assert preflight.status_code == 400
    assert "access-control-allow-origin" not in preflight.headers
    plain = secured.client.get("/health", headers={"Origin": "https://evil.example"})
    assert "access-control-allow-origin" not in plain.headers


def test_one_json_line_per_finished_request_has_the_answers_figures(secured: ServerProcess) -> None:
    body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 40, "ignore_eos": True}
    headers = bearer(SECRET) | {"x-request-id": "order.66/a"}
    response = secured.client.post("/v1/completions", json=body, headers=headers)
    assert response.headers["x-request-id"] == "order.66/a"
    line, answer = finished_line(secured, "order.66/a"), response.json()
    assert line["job"] == answer["id"]
    assert (line["key"], line["model"], line["endpoint"], line["reason"]) == ("alice", "tiny", "completions", "length")
    assert line["tokens"] == answer["usage"]["completion_tokens"] == 40
    assert line["forwards"] == answer["psd"]["forwards"]
    assert line["tokens_per_forward"] == answer["psd"]["tokens_per_forward"]
    assert 0 <= line["queue_seconds"] <= line["first_text_seconds"] <= line["total_seconds"]


def test_what_is_not_known_of_a_cancelled_request_is_null_in_its_line_and_not_zero(secured: ServerProcess) -> None:
    body = {"model": "tiny", "prompt": "a", "max_tokens": 400, "ignore_eos": True, "stream": True, "psd": SLOW}
    headers = bearer(SECRET) | {"x-request-id": "left-early"}
    with secured.client.stream("POST", "/v1/completions", json=body, headers=headers) as response:
        next(response.iter_lines())
    line = finished_line(secured, "left-early")
    assert line["reason"] == "cancelled"
    assert (line["forwards"], line["tokens_per_forward"], line["queue_seconds"]) == (None, None, None)


def test_two_requests_of_one_id_both_work(secured: ServerProcess) -> None:
    body = {"model": "tiny", "prompt": "a", "max_tokens": 2}
    headers = bearer("bob-key") | {"x-request-id": "twin"}
    with ThreadPoolExecutor(2) as pool:
        calls = [
            pool.submit(httpx.post, f"{secured.url}/v1/completions", json=body, headers=headers, timeout=60)
            for _ in range(2)
        ]
        answers = [call.result() for call in calls]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert answers[0].json()["id"] != answers[1].json()["id"]


@pytest.mark.parametrize("given", ["a" * 129, "a b", "é", "\x1b[31m", "../../etc", ""])
def test_a_harmful_request_id_is_replaced(secured: ServerProcess, given: str) -> None:
    raw = {b"x-request-id": given.encode()}
    answer = secured.client.get("/health", headers=raw).headers["x-request-id"]
    assert answer.startswith("req-") or given == "../../etc"  # dots and slashes are text: no path is made of them


def test_a_key_is_held_to_its_open_sequences_and_its_rate(secured: ServerProcess) -> None:
    url, headers = f"{secured.url}/v1/completions", bearer("bob-key")
    body = {"model": "tiny", "prompt": "a", "max_tokens": 480, "ignore_eos": True, "psd": SLOW, "stream": True}
    (worker,) = secured.worker_pids()
    os.kill(worker, signal.SIGSTOP)  # so that the sequences stay open
    with httpx.stream("POST", url, json=body | {"n": 2}, headers=headers, timeout=60) as running:
        assert running.status_code == 200
        refused = secured.client.post(url, json=body, headers=headers)
        os.kill(worker, signal.SIGCONT)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "key_limit")
        other = httpx.post(url, json=body | {"max_tokens": 1, "stream": False}, headers=bearer(SECRET), timeout=60)
        assert other.status_code == 200

    def is_free() -> bool:
        time.sleep(0.2)  # each try counts for the rate
        return httpx.post(url, json=body | {"max_tokens": 1}, headers=headers, timeout=60).status_code == 200

    wait_until(is_free, 20)
    statuses = [httpx.post(url, json={}, headers=headers, timeout=60) for _ in range(60)]
    limited = [response for response in statuses if response.status_code == 429]
    assert limited
    assert limited[0].json()["error"]["code"] == "rate_limited"
    assert int(limited[0].headers["retry-after"]) >= 1
    assert httpx.post(url, json={}, headers=bearer(SECRET), timeout=60).status_code == 400


def test_no_text_and_no_key_is_in_the_log_even_when_debugging(secured: ServerProcess) -> None:
    headers = bearer(SECRET)
    messages = [{"role": "user", "content": PROMPT}]
    body = {"model": "tiny", "messages": messages, "max_tokens": 8, "ignore_eos": True}
    answer = secured.client.post("/v1/chat/completions", json=body, headers=headers)
    text = answer.json()["choices"][0]["message"]["content"]
    streamed = secured.client.post("/v1/chat/completions", json=body | {"stream": True}, headers=headers)
    finished_line(secured, streamed.headers["x-request-id"])
    secured.client.get("/v1/models", headers=bearer(f"{SECRET}-wrong"))
    for hidden in (SECRET, "Quixotic", json.dumps(text)[1:-1]):
        assert hidden not in secured.log
    assert all(line["request_id"] for line in lines_of(secured))


def test_every_answer_has_a_request_id(secured: ServerProcess) -> None:
    for method, path in (("GET", "/health"), ("GET", "/nope"), ("PUT", "/health"), ("OPTIONS", "/v1/completions")):
        assert secured.client.request(method, path).headers["x-request-id"]


@pytest.mark.parametrize("formatter", [TextFormatter("%(message)s"), JsonFormatter()])
@pytest.mark.parametrize("text", ["a\nb", "a\r\nERROR b", "\x1b[2Jx", "\x9b31m", "a\u2028b", "\ud800", "\x00\x7f"])
def test_no_text_can_forge_a_line_or_drive_a_terminal(formatter: logging.Formatter, text: str) -> None:
    try:
        raise ValueError(text)
    except ValueError as error:
        record = logging.LogRecord("x", logging.INFO, "", 0, "got %s", (text,), (type(error), error, None))
    written = formatter.format(record)
    assert all(char == "\n" or char.isprintable() for char in written)
    if isinstance(formatter, JsonFormatter):
        assert "\n" not in written
    else:
        assert "\n" not in written.partition("ValueError")[0].rstrip("\n")


@pytest.mark.parametrize("formatter", [TextFormatter("%(message)s"), JsonFormatter()])
def test_a_key_that_a_library_would_log_is_redacted(formatter: logging.Formatter) -> None:
    record = logging.LogRecord("x", logging.INFO, "", 0, "headers %s", ({"authorization": "bearer s3cret"},), None)
    assert "s3cret" not in formatter.format(record)
    assert "***" in formatter.format(record)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["plain-key"], "line 1"),
        (["", "sha256:abc"], "line 2"),
        ([hashed("a") + " a name"], "line 1"),
        (["# nothing"], "at least one key"),
    ],
)
def test_a_wrong_key_file_is_refused_without_showing_it(tmp_path: Path, lines: list[str], words: str) -> None:
    path = write_keys(tmp_path / "keys", *lines)
    with pytest.raises(ConfigError, match=words) as caught:
        resolve({"api_key_file": [path]}, {})
    assert "plain-key" not in str(caught.value)
    with pytest.raises(ConfigError, match="readable"):
        resolve({"api_key_file": [str(tmp_path / "none")]}, {})


def test_limits_per_key_need_keys() -> None:
    with pytest.raises(ConfigError, match="--max-key-seqs needs --api-key"):
        resolve({"max_key_seqs": ["2"]}, {})


def test_tls_files_that_do_not_fit_each_other_are_refused_at_the_start() -> None:
    with pytest.raises(ConfigError, match="cannot be used together"):
        resolve({"ssl_certfile": [str(TLS / "cert.pem")], "ssl_keyfile": [str(TLS / "other-key.pem")]}, {})


def test_over_tls_everything_works_and_plain_http_does_not(random_model_path: Path, tmp_path: Path) -> None:
    flags = ["--ssl-certfile", str(TLS / "cert.pem"), "--ssl-keyfile", str(TLS / "key.pem"), "--read-timeout", "2"]
    trusting = ssl.create_default_context(cafile=str(TLS / "cert.pem"))
    with ServerProcess(random_model_path, tmp_path, flags, verify=trusting) as server:
        assert server.url.startswith("https://")
        assert server.complete(max_tokens=4).status_code == 200
        stream = server.complete(max_tokens=4, stream=True)
        assert stream.text.endswith("data: [DONE]\n\n")
        with pytest.raises(httpx.TransportError):
            httpx.get(server.url.replace("https://", "http://") + "/health")
        with pytest.raises(httpx.ConnectError, match="certificate"):
            httpx.get(f"{server.url}/health")
        old = ssl.create_default_context(cafile=str(TLS / "cert.pem"))
        old.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            old.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{server.url}/health", verify=old)
        assert "Traceback" not in server.log
