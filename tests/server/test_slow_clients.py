"""Clients that send or read too slowly are given up; what is not HTTP gets our envelope; sizes are bounded."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.server.process import SLOW, ServerProcess, wait_until
from tests.server.test_lifecycle import is_idle

HEAD = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


@pytest.fixture(scope="module")
def impatient(random_model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that waits a second for its clients."""
    flags = ["--read-timeout", "1", "--stream-stall-timeout", "1"]
    with ServerProcess(random_model_path, tmp_path_factory.mktemp("impatient"), flags) as process:
        yield process


@contextmanager
def connect(server: ServerProcess, receive_bytes: int | None = None) -> Iterator[socket.socket]:
    """A bare connection; `receive_bytes` bounds what the kernel takes for a client that does not read."""
    with socket.socket() as connection:
        connection.settimeout(30)
        if receive_bytes is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        connection.connect(("127.0.0.1", int(server.url.rpartition(":")[2])))
        yield connection


def read_all(connection: socket.socket) -> bytes:
    """Everything until the server closes."""
    parts = []
    while part := connection.recv(65_536):
        parts.append(part)
    return b"".join(parts)


def answer_of(raw: bytes) -> tuple[int, str]:
    """Status and error code of a raw answer, which must have a request id and end its connection."""
    head, _, body = raw.partition(b"\r\n\r\n")
    assert b"x-request-id: " in head.lower()
    assert b"connection: close" in head.lower()
    return int(head.split()[1]), json.loads(body)["error"]["code"]


@pytest.mark.parametrize("sent", ["", "GET /heal", HEAD])
def test_a_header_that_does_not_arrive_is_given_up(impatient: ServerProcess, sent: str) -> None:
    with connect(impatient) as connection:
        connection.sendall(sent.encode())
        assert answer_of(read_all(connection)) == (408, "read_timeout")


def test_trickling_bytes_do_not_move_the_deadline(impatient: ServerProcess) -> None:
    with connect(impatient) as connection:
        connection.settimeout(0.05)
        connection.sendall(HEAD.encode())
        answer = b""
        for _ in range(400):
            try:
                connection.sendall(b"X-A: b\r\n")
                answer += connection.recv(4096)
            except TimeoutError:
                continue
            except OSError:
                break
            if not answer.endswith(b"}"):
                continue
            break
        assert answer_of(answer) == (408, "read_timeout")


def test_a_body_that_does_not_arrive_is_given_up(impatient: ServerProcess) -> None:
    with connect(impatient) as connection:
        connection.sendall(f"{HEAD}Content-Length: 100\r\n\r\n".encode() + b'{"model"')
        assert answer_of(read_all(connection)) == (408, "read_timeout")


def test_a_body_that_goes_on_after_its_answer_is_cut(impatient: ServerProcess) -> None:
    with connect(impatient) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n{")
        connection.recv(1)
        connection.sendall(b"more")
        assert b'"status":"ok"' in read_all(connection)


def test_an_idle_connection_that_is_used_again_in_time_stays(impatient: ServerProcess) -> None:
    with connect(impatient) as connection:
        for _ in range(2):
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            answer = b""
            while not answer.endswith(b"}"):
                answer += connection.recv(65_536)
            assert answer.startswith(b"HTTP/1.1 200")


def test_too_large_headers_and_what_is_not_http_get_the_envelope(impatient: ServerProcess) -> None:
    for sent, expected in (
        (HEAD + "X-Long: " + "a" * 100_000, (431, "header_too_large")),
        (HEAD + "".join(f"X-{i}: {'a' * 100}\r\n" for i in range(1000)), (431, "header_too_large")),
        ("\x16\x03\x01\x02\x00 not http\r\n\r\n", (400, "invalid_request")),
        ("GET / HTTP/1.1\r\nHost: x\r\nX-Bad\x00: 1\r\n\r\n", (400, "invalid_request")),
        ("GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", (400, "invalid_request")),
    ):
        with connect(impatient) as connection:
            connection.sendall(sent.encode("latin-1"))
            assert answer_of(read_all(connection)) == expected
    assert "Traceback" not in impatient.log


def resident_bytes(pid: int) -> int:
    """Memory of a process that is in RAM."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


def test_a_client_that_stops_reading_is_cut_and_its_work_cancelled(impatient: ServerProcess) -> None:
    server = impatient
    body = {
        "model": "tiny",
        "prompt": "a",
        "max_tokens": 256,
        "n": 16,
        "ignore_eos": True,
        "psd": SLOW | {"block_length": 256},
        "stream": True,
        "diffusing": True,
    }
    data = json.dumps(body).encode()
    cancelled = 'psd_requests_total{endpoint="completions",finish_reason="cancelled"}'
    before, memory = server.metric(cancelled), resident_bytes(server.process.pid)
    with connect(server, receive_bytes=4096) as connection:
        connection.sendall(f"{HEAD}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        wait_until(lambda: server.metric(cancelled) > before, 60)
        wait_until(lambda: is_idle(server), 10)
    assert "read nothing for 1 s" in server.log
    assert resident_bytes(server.process.pid) - memory < 30e6
    assert server.complete(max_tokens=1).status_code == 200


def test_a_slow_reader_that_reads_gets_everything(impatient: ServerProcess) -> None:
    body = {"model": "tiny", "prompt": "a", "max_tokens": 64, "n": 4, "ignore_eos": True, "return_token_ids": True}
    data = json.dumps(body | {"stream": True, "diffusing": True, "psd": SLOW}).encode()
    with connect(impatient, receive_bytes=4096) as connection:
        connection.sendall(f"{HEAD}Connection: close\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
        parts = []
        while part := connection.recv(8192):
            parts.append(part)
            time.sleep(0.002)  # slower than the server, not a wait for anything
    whole = httpx.post(f"{impatient.url}/v1/completions", json=body | {"psd": SLOW}, timeout=60).json()
    raw = b"".join(parts)
    assert b"data: [DONE]" in raw
    frames = [line.removeprefix(b"data: ") for line in raw.splitlines() if line.startswith(b"data: {")]
    token_ids: dict[int, list[int]] = {}
    for frame in frames:
        for choice in json.loads(frame)["choices"]:
            token_ids.setdefault(choice["index"], []).extend(choice["token_ids"])
    assert [token_ids[choice["index"]] for choice in whole["choices"]] == [c["token_ids"] for c in whole["choices"]]
