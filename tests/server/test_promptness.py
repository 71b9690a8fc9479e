"""How soon: errors after a worker's death, forwards and gauges after a client's leaving.

A busy machine may be late for reasons of its own. So a time is the least of a few tries: what is slow by design is slow
in all of them.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.server.process import SLOW, ServerProcess, wait_until
from tests.server.test_faults import FAULTS
from tests.server.test_lifecycle import LONG, is_idle
from tests.server.test_slow_clients import HEAD, connect

TAKES_LONG = 264  # as in faults/sitecustomize.py: half a second for each forward
TRIES = 4


@pytest.fixture(scope="module")
def slow(random_model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One worker, whose forwards take as long as asked."""
    with ServerProcess(random_model_path, tmp_path_factory.mktemp("slow"), variables=FAULTS) as process:
        yield process


def least(attempt: Callable[[], float], enough: float) -> float:
    """The least of a few tries; no more of them than needed."""
    best = attempt()
    for _ in range(TRIES - 1):
        if best <= enough:
            break
        best = min(best, attempt())
    return best


def send(connection: socket.socket, **fields: object) -> None:
    """A completion request of which the connection reads what it likes."""
    data = json.dumps({"model": "tiny", "ignore_eos": True} | fields).encode()
    connection.sendall(f"{HEAD}Content-Length: {len(data)}\r\n\r\n".encode() + data)


def test_open_requests_of_a_killed_worker_end_within_a_second(random_model_path: Path, tmp_path: Path) -> None:
    with ServerProcess(random_model_path, tmp_path) as server, ThreadPoolExecutor(1) as pool:
        url = f"{server.url}/v1/completions"

        def attempt() -> float:
            wait_until(server.is_ready, 60)
            whole = pool.submit(httpx.post, url, json=LONG, timeout=60)
            with httpx.stream("POST", url, json=LONG | {"stream": True}, timeout=60) as stream:
                lines = stream.iter_lines()
                next(lines)
                wait_until(lambda: server.metric("psd_requests_running") == 16)
                killed = time.monotonic()
                server.kill_worker()
                rest = [line for line in lines if line]
                answer = whole.result()
                seconds = time.monotonic() - killed
            assert server.client.get("/ready").status_code == 503  # for as long as a new worker takes to start
            assert json.loads(rest[-2].removeprefix("data: "))["error"]["code"] == "worker_died"
            assert rest[-1] == "data: [DONE]"
            assert (answer.status_code, answer.json()["error"]["code"]) == (500, "worker_died")
            return seconds

        assert least(attempt, 1.0) <= 1.0


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("is_queued", [False, True])
def test_gauges_are_at_zero_within_a_second_of_the_last_clients_leaving(
    random_server: ServerProcess, stream: bool, is_queued: bool
) -> None:
    server = random_server

    def attempt() -> float:
        num_choices = 96 if is_queued else 8  # the server runs 64 at once
        with connect(server) as connection:
            send(connection, prompt="a", max_tokens=480, n=num_choices, stream=stream, psd=SLOW | {"block_length": 8})
            wait_until(lambda: server.metric("psd_requests_running") == min(num_choices, 64))
        left = time.monotonic()
        wait_until(lambda: is_idle(server))
        assert server.metric("psd_kv_cache_usage_ratio") == 0
        return time.monotonic() - left

    assert least(attempt, 1.0) <= 1.0


@pytest.mark.parametrize("stream", [False, True])
def test_who_leaves_takes_part_in_no_forward_but_the_one_that_runs(slow: ServerProcess, stream: bool) -> None:
    forwards = 'psd_forwards_total{phase="denoise"}'

    def attempt() -> float:
        before = slow.metric(forwards) if forwards in slow.client.get("/metrics").text else 0
        with connect(slow) as connection:
            send(connection, prompt=[TAKES_LONG], max_tokens=64, stream=stream, psd=SLOW)
            wait_until(lambda: forwards in slow.client.get("/metrics").text and slow.metric(forwards) > before)
            seen = slow.metric(forwards)
        wait_until(lambda: is_idle(slow))
        return slow.metric(forwards) - seen

    assert least(attempt, 1) <= 1


def test_who_leaves_the_queue_is_out_of_it_while_the_others_still_run(slow: ServerProcess) -> None:
    with connect(slow) as first, connect(slow) as second:
        send(first, prompt=[TAKES_LONG], max_tokens=64, n=64, psd=SLOW)
        wait_until(lambda: slow.metric("psd_requests_running") == 64)
        send(second, prompt=[9], max_tokens=8, psd=SLOW)
        wait_until(lambda: slow.metric("psd_requests_waiting") == 1)
        second.close()
        wait_until(lambda: slow.metric("psd_requests_waiting") == 0)
        assert slow.metric("psd_requests_running") == 64
    wait_until(lambda: is_idle(slow))


def test_nothing_is_unpickled_while_a_model_is_loaded_and_serves(slow: ServerProcess) -> None:
    """Any object that a pickle would build is reported by the interpreter itself, in both processes."""
    assert slow.complete(max_tokens=2).status_code == 200
    assert slow.chat(max_tokens=2, stream=True).status_code == 200
    assert "unpickled" not in slow.log
