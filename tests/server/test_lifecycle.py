"""Clients leave, workers die, signals arrive: nothing hangs, nothing is lost in silence, nothing stays behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
import torch

from server.processes import WORKER_SETTINGS, worker_environment
from tests.server.process import SERVE, SLOW, ServerProcess, wait_until

LONG = {
    "model": "tiny",
    "prompt": "a",
    "max_tokens": 480,
    "ignore_eos": True,
    "psd": SLOW | {"block_length": 8},
    "n": 8,
}
ROOT = Path(__file__).parents[2]


@pytest.fixture
def own_server(random_model_path: Path, tmp_path: Path) -> Iterator[ServerProcess]:
    """A server that the test may break."""
    with ServerProcess(random_model_path, tmp_path) as process:
        yield process


def is_idle(server: ServerProcess) -> bool:
    return server.metric("psd_requests_running") == server.metric("psd_requests_waiting") == 0


def is_running(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_the_engine(random_server: ServerProcess, stream: bool) -> None:
    server = random_server
    cancelled = 'psd_requests_total{endpoint="completions",finish_reason="cancelled"}'
    before, forwards = server.metric(cancelled), server.metric('psd_forwards_total{phase="denoise"}')
    body = json.dumps(LONG | {"stream": stream}).encode()
    lines = (
        "POST /v1/completions HTTP/1.1",
        "Host: x",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
    )
    head = "\r\n".join((*lines, "", ""))
    with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2]))) as connection:
        connection.sendall(head.encode() + body)
        wait_until(lambda: server.metric("psd_requests_running") == 8)
    wait_until(lambda: server.metric(cancelled) == before + 8, 5)
    wait_until(lambda: is_idle(server), 5)
    assert server.metric('psd_forwards_total{phase="denoise"}') - forwards < 480


def test_clients_that_leave_before_their_body_is_complete_or_while_they_wait_leave_nothing(
    random_server: ServerProcess,
) -> None:
    server, port = random_server, int(random_server.url.rpartition(":")[2])
    head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(f"{head}Content-Length: 1000\r\n\r\n".encode() + b'{"model":')
    bodies = [json.dumps(LONG | {"n": 32}).encode() for _ in range(3)]
    connections = [socket.create_connection(("127.0.0.1", port)) for _ in bodies]
    for connection, body in zip(connections, bodies, strict=True):
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    wait_until(lambda: server.metric("psd_requests_running") == 64 and server.metric("psd_requests_waiting") == 32)
    for connection in reversed(connections):
        connection.close()
    wait_until(lambda: is_idle(server), 5)
    assert server.metric("psd_kv_cache_usage_ratio") == 0
    assert "Traceback" not in server.log


def test_a_dead_worker_ends_its_requests_at_once_and_is_replaced(own_server: ServerProcess) -> None:
    server = own_server
    url = f"{server.url}/v1/completions"
    with (
        ThreadPoolExecutor(1) as executor,
        httpx.stream("POST", url, json=LONG | {"stream": True}, timeout=60) as stream,
    ):
        lines = stream.iter_lines()
        first = next(lines)
        whole = executor.submit(httpx.post, url, json=LONG, timeout=60)
        wait_until(lambda: server.metric("psd_requests_running") == 16)
        server.kill_worker()
        rest = [line for line in lines if line]
        assert json.loads(first.removeprefix("data: "))["choices"]
        assert json.loads(rest[-2].removeprefix("data: "))["error"]["code"] == "worker_died"
        assert rest[-1] == "data: [DONE]"
        refused = whole.result()
        assert refused.status_code == 500
        assert refused.json()["error"]["code"] == "worker_died"
    wait_until(lambda: server.metric('psd_request_errors_total{code="worker_died"}') == 2)
    assert server.client.get("/health").status_code == 200
    wait_until(server.is_ready, 60)
    assert server.complete(max_tokens=4).status_code == 200
    assert server.metric("psd_worker_restarts_total") == 1
    assert is_idle(server)


def test_a_request_that_no_worker_had_begun_survives_its_death(own_server: ServerProcess) -> None:
    server = own_server
    (pid,) = server.worker_pids()
    os.kill(pid, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as executor:
        answer = executor.submit(server.complete, max_tokens=4)
        wait_until(lambda: server.metric("psd_prompt_tokens_total") > 0)
        os.kill(pid, signal.SIGKILL)
        assert answer.result().status_code == 200
    assert server.metric("psd_worker_restarts_total") == 1


def test_while_loading_the_server_says_so(random_model_path: Path, tmp_path: Path) -> None:
    with ServerProcess(random_model_path, tmp_path, waits_ready=False) as server:
        assert server.client.get("/health").status_code == 200
        ready = server.client.get("/ready")
        refused = server.complete(max_tokens=1)
        if ready.status_code == 503:  # the model may have been quicker than the test
            assert ready.json()["status"] == "loading"
            assert int(ready.headers["retry-after"]) >= 1
        if refused.status_code != 200:
            assert refused.status_code == 503
            assert refused.json()["error"]["code"] == "worker_unavailable"
            assert int(refused.headers["retry-after"]) >= 1
        wait_until(server.is_ready, 60)
        assert server.complete(max_tokens=1).status_code == 200
        banner = server.log
    for word in ("PSD server", "tiny", "cpu", "threshold", server.url, "curl", f"{server.url}/ in a browser"):
        assert word in banner


def test_sigterm_lets_open_requests_finish_and_exits_with_0(own_server: ServerProcess) -> None:
    server = own_server
    pids = server.worker_pids()
    with httpx.stream(
        "POST", f"{server.url}/v1/completions", json=LONG | {"stream": True, "n": 1}, timeout=60
    ) as stream:
        lines = stream.iter_lines()
        next(lines)
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: httpx.get(f"{server.url}/health").json()["status"] == "draining")
        refused = httpx.post(f"{server.url}/v1/completions", json=LONG)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
        assert int(refused.headers["retry-after"]) >= 1
        rest = [json.loads(line.removeprefix("data: ")) for line in lines if line and "[DONE]" not in line]
    assert rest[-1]["choices"][0]["finish_reason"] == "length"
    assert server.process.wait(20) == 0
    assert not any(map(is_running, pids))


def test_after_the_drain_timeout_open_requests_end_with_an_error(random_model_path: Path, tmp_path: Path) -> None:
    with ServerProcess(random_model_path, tmp_path, ["--drain-timeout", "0.2"]) as server:
        body = LONG | {"stream": True, "n": 32}
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as stream:
            lines = stream.iter_lines()
            next(lines)
            server.process.send_signal(signal.SIGTERM)
            rest = [line for line in lines if line]
        assert json.loads(rest[-2].removeprefix("data: "))["error"]["code"] == "shutting_down"
        assert rest[-1] == "data: [DONE]"
        assert server.process.wait(20) == 0


def test_a_second_signal_exits_at_once(own_server: ServerProcess) -> None:
    server = own_server
    pids = server.worker_pids()
    with httpx.stream("POST", f"{server.url}/v1/completions", json=LONG | {"stream": True}, timeout=60) as stream:
        next(stream.iter_lines())
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: "Shutting down" in server.log or _is_refusing(server))
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(10)
    wait_until(lambda: not any(map(is_running, pids)), 5)


def _is_refusing(server: ServerProcess) -> bool:
    try:
        status: str = httpx.get(f"{server.url}/health").json()["status"]
    except httpx.TransportError:
        return True
    return status == "draining"


def test_the_worker_ends_when_the_api_process_is_killed(own_server: ServerProcess) -> None:
    pids = own_server.worker_pids()
    assert len(pids) == 1
    own_server.process.kill()
    own_server.process.wait()
    wait_until(lambda: not any(map(is_running, pids)), 5)


def test_a_worker_has_settings_for_memory_and_threads_that_the_environment_may_change(
    random_server: ServerProcess,
) -> None:
    (pid,) = random_server.worker_pids()
    entries = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    given = dict(entry.split("=", 1) for entry in entries if entry)
    assert {name: given[name] for name in WORKER_SETTINGS} == {
        name: os.environ.get(name, value) for name, value in WORKER_SETTINGS.items()
    }
    assert worker_environment({"MALLOC_TRIM_THRESHOLD_": "7", "HOME": "/x"}) == {
        **WORKER_SETTINGS,
        "MALLOC_TRIM_THRESHOLD_": "7",
        "HOME": "/x",
    }


def test_a_port_in_use_fails_before_the_model_is_loaded(server: ServerProcess, random_model_path: Path) -> None:
    port = server.url.rpartition(":")[2]
    command = [*SERVE, "--port", port, "--model", str(random_model_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30, cwd=ROOT, check=False)
    assert ended.returncode == 1
    assert f"port {port}" in ended.stderr


def test_a_broken_checkpoint_ends_the_server_with_its_reason(random_model_path: Path, tmp_path: Path) -> None:
    for source in random_model_path.iterdir():
        (tmp_path / source.name).write_bytes(source.read_bytes())
    (tmp_path / "model.safetensors").write_bytes(b"broken")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [*SERVE, "--port", "0", "--model", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT, env=environment, check=False)
    assert ended.returncode == 1
    assert "model.safetensors" in ended.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_server_that_cannot_have_graphs_says_so_and_ends(random_model_path: Path) -> None:
    command = [*SERVE, "--port", "0", "--model", str(random_model_path), "--cuda-graphs"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT, env=environment, check=False)
    assert ended.returncode == 1
    assert "--cuda-graphs needs a CUDA device; the model is on cpu" in ended.stderr


def test_replicas_share_the_load_and_outlive_each_other(random_model_path: Path, tmp_path: Path) -> None:
    with ServerProcess(random_model_path, tmp_path, ["--replicas", "2"]) as server:
        wait_until(lambda: server.client.get("/health").json()["workers"] == ["ready", "ready"], 60)
        os.kill(server.worker_pids()[0], signal.SIGKILL)
        wait_until(lambda: server.metric("psd_worker_restarts_total") == 1)
        assert server.client.get("/ready").status_code == 200
        assert server.complete(max_tokens=4).status_code == 200
        wait_until(lambda: server.client.get("/health").json()["workers"] == ["ready", "ready"], 60)


def test_requests_that_wait_in_a_dead_workers_queue_are_served_by_another(
    random_model_path: Path, tmp_path: Path
) -> None:
    with ServerProcess(random_model_path, tmp_path, ["--max-num-seqs", "1"]) as server, ThreadPoolExecutor(4) as pool:
        busy = pool.submit(server.complete, max_tokens=200, psd=SLOW)
        wait_until(lambda: server.metric("psd_requests_running") == 1)
        waiting = [pool.submit(server.complete, max_tokens=2) for _ in range(2)]
        wait_until(lambda: server.metric("psd_requests_waiting") == 2)
        server.kill_worker()
        assert busy.result().status_code == 500
        assert [future.result().status_code for future in waiting] == [200, 200]


def test_a_request_that_waits_too_long_is_given_up_and_one_that_runs_is_not(
    random_model_path: Path, tmp_path: Path
) -> None:
    flags = ["--queue-timeout", "0.5", "--max-num-seqs", "1"]
    body = LONG | {"n": 1}
    with ServerProcess(random_model_path, tmp_path, flags) as server, ThreadPoolExecutor(1) as pool:
        running = pool.submit(server.complete, **body)
        wait_until(lambda: server.metric("psd_requests_running") == 1)
        waiting = httpx.post(f"{server.url}/v1/completions", json=body | {"prompt": "b"}, timeout=60)
        if waiting.status_code != 200:  # the first may have been quicker
            assert (waiting.status_code, waiting.json()["error"]["code"]) == (503, "queue_timeout")
            assert int(waiting.headers["retry-after"]) >= 1
        assert running.result().status_code == 200
        wait_until(lambda: is_idle(server), 5)


def test_a_request_that_takes_too_long_is_given_up(random_model_path: Path, tmp_path: Path) -> None:
    with ServerProcess(random_model_path, tmp_path, ["--request-timeout", "0.05"]) as server:
        response = httpx.post(f"{server.url}/v1/completions", json=LONG, timeout=60)
        assert response.status_code == 504
        assert response.json()["error"]["code"] == "request_timeout"
        wait_until(lambda: is_idle(server), 5)
