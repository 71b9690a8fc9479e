"""More connections than the server holds: idle ones give way, those that are answered stay, others are told."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.connections import OTHER_FILES, ConnectionLimit, allow_open_files
from tests.server.process import SLOW, ServerProcess, wait_until
from tests.server.test_lifecycle import is_idle
from tests.server.test_slow_clients import HEAD, answer_of, connect, read_all

MAX_CONNECTIONS = 8
BODY = {"model": "tiny", "prompt": "a", "max_tokens": 400, "ignore_eos": True, "psd": SLOW, "stream": True}
IDLE = (b"", b"GET /health HTTP/1.1\r\nX-Slow: ", f"{HEAD}Content-Length: 1000\r\n\r\n{{".encode())
REFUSALS = 'psd_request_errors_total{code="too_many_connections"}'


@pytest.fixture(scope="module")
def narrow(random_model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server of eight connections, which waits long for its clients."""
    flags = ["--max-connections", str(MAX_CONNECTIONS), "--read-timeout", "600"]
    with ServerProcess(random_model_path, tmp_path_factory.mktemp("narrow"), flags) as process:
        yield process


def is_open(connection: socket.socket) -> bool:
    """Whether the server still holds it; an answer that came is read away."""
    connection.setblocking(False)
    try:
        while connection.recv(4096):
            pass
    except BlockingIOError:
        return True
    except ConnectionResetError:
        return False
    return False


@pytest.mark.parametrize("sent", IDLE)
def test_a_flood_of_idle_connections_pushes_itself_out_and_not_those_who_ask(
    narrow: ServerProcess, sent: bytes
) -> None:
    narrow.client.get("/health")  # this connection is kept alive, and may give way like any other
    with ExitStack() as stack, httpx.stream("POST", f"{narrow.url}/v1/completions", json=BODY, timeout=60) as stream:
        lines = stream.iter_lines()
        next(lines)
        flood = []
        for _ in range(5 * MAX_CONNECTIONS):
            connection = stack.enter_context(connect(narrow))
            connection.sendall(sent)
            flood.append(connection)
            if len(flood) % MAX_CONNECTIONS == 0:
                assert httpx.get(f"{narrow.url}/health", timeout=60).status_code == 200
        wait_until(lambda: sum(map(is_open, flood)) < MAX_CONNECTIONS)
        assert httpx.post(f"{narrow.url}/v1/completions", json=BODY | {"max_tokens": 1}, timeout=60).status_code == 200
        rest = [line for line in lines if line]
    assert json.loads(rest[-2].removeprefix("data: "))["choices"][0]["finish_reason"] == "length"
    assert rest[-1] == "data: [DONE]"
    wait_until(lambda: is_idle(narrow))


def test_who_gives_way_before_any_answer_is_told_why(narrow: ServerProcess) -> None:
    before = narrow.metric(REFUSALS)
    with ExitStack() as stack:
        first = stack.enter_context(connect(narrow))
        for _ in range(MAX_CONNECTIONS):
            stack.enter_context(connect(narrow))
        answer = read_all(first)
    assert answer_of(answer) == (503, "too_many_connections")
    assert b"retry-after: 1" in answer
    assert narrow.metric(REFUSALS) > before


def test_where_every_connection_is_being_answered_a_newcomer_is_refused(narrow: ServerProcess) -> None:
    (worker,) = narrow.worker_pids()
    data = json.dumps(BODY | {"max_tokens": 8}).encode()
    request = f"{HEAD}Content-Length: {len(data)}\r\n\r\n".encode() + data
    with ExitStack() as stack:
        os.kill(worker, signal.SIGSTOP)
        try:
            busy = [stack.enter_context(connect(narrow)) for _ in range(MAX_CONNECTIONS)]
            for connection in busy:
                connection.sendall(request)
                assert connection.recv(1) == b"H"  # the head of a stream: the request is here as a whole
            with connect(narrow) as newcomer:
                assert answer_of(read_all(newcomer)) == (503, "too_many_connections")
        finally:
            os.kill(worker, signal.SIGCONT)
        for connection in busy:
            answer = b""
            while not answer.endswith(b"0\r\n\r\n"):
                answer += connection.recv(65_536)
            assert b"data: [DONE]" in answer


class Counted:
    """A connection that knows whether it gave way."""

    has_given_way = False

    def give_way(self) -> None:
        self.has_given_way = True


@given(st.lists(st.tuples(st.sampled_from(["enter", "work", "wait", "leave"]), st.integers(0, 5)), max_size=60))
def test_the_limit_holds_and_only_the_longest_waiting_gives_way(steps: list[tuple[str, int]]) -> None:
    limit = ConnectionLimit(3)
    waiting: list[Counted] = []  # in the order in which their waiting began
    working: list[Counted] = []
    for step, place in steps:
        known = waiting + working
        if step == "enter":
            newcomer = Counted()
            oldest = waiting[0] if len(known) == 3 and waiting else None
            assert limit.enter(newcomer) == (len(known) < 3 or oldest is not None)
            if oldest is not None:
                assert oldest.has_given_way
                waiting.remove(oldest)
            if len(waiting + working) < 3:
                waiting.append(newcomer)
        elif place < len(known):
            chosen = known[place]
            if step == "leave":
                limit.leave(chosen)
            else:
                limit.set_waiting(chosen, is_waiting=step == "wait")
            if step != "wait" or chosen in working:
                (waiting if chosen in waiting else working).remove(chosen)
            if step == "work":
                working.append(chosen)
            if step == "wait" and chosen not in waiting:
                waiting.append(chosen)
        assert limit.num_open == len(waiting + working) <= 3
        assert not any(connection.has_given_way for connection in waiting + working)


def test_files_are_allowed_for_the_connections_as_far_as_the_system_lets_it() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (300, hard))
        assert allow_open_files(100) == 100
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 100 + OTHER_FILES
        assert allow_open_files(hard) == hard - OTHER_FILES
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
