"""Workers that raise, hang, abort or run out of memory: the guilty request ends, the others are served."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.server.process import SLOW, ServerProcess, wait_until
from tests.server.test_lifecycle import is_idle, is_running

RAISES, HANGS, ABORTS, EXCEEDS_MEMORY = 260, 261, 262, 263  # as in faults/sitecustomize.py
FAULTS = {"PYTHONPATH": f"{Path(__file__).parents[2]}{os.pathsep}{Path(__file__).parent / 'faults'}"}


@pytest.fixture(scope="module")
def faulty(random_model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One worker that goes wrong when asked to, and is given two seconds for a forward."""
    flags = ["--forward-timeout", "2"]
    with ServerProcess(random_model_path, tmp_path_factory.mktemp("faulty"), flags, variables=FAULTS) as process:
        yield process


def post(server: ServerProcess, **fields: object) -> httpx.Response:
    """A request that waits for a worker that is restarting."""
    wait_until(server.is_ready, 60)
    return server.complete(max_tokens=4, **fields)


@pytest.mark.parametrize(("fault", "words"), [(RAISES, "RuntimeError"), (ABORTS, "signal 6"), (HANGS, "hangs")])
def test_a_fatal_request_gets_the_reason_and_is_refused_after_two_deaths(
    faulty: ServerProcess, fault: int, words: str
) -> None:
    restarts = faulty.metric("psd_worker_restarts_total")
    for seed in range(2):
        died = post(faulty, prompt=[fault, 9], seed=seed)
        assert (died.status_code, died.json()["error"]["code"]) == (500, "worker_died")
        assert words in died.json()["error"]["message"]
    refused = post(faulty, prompt=[fault, 9])
    assert (refused.status_code, refused.json()["error"]["code"]) == (422, "request_refused")
    assert "2 workers died" in refused.json()["error"]["message"]
    assert faulty.metric("psd_worker_restarts_total") == restarts + 2
    assert post(faulty, prompt=[9, fault]).status_code == 200
    assert is_idle(faulty)


def test_while_a_hanging_worker_is_replaced_waiting_requests_stay_and_are_served(
    random_model_path: Path, tmp_path: Path
) -> None:
    flags = ["--forward-timeout", "2", "--max-num-seqs", "1"]
    with (
        ServerProcess(random_model_path, tmp_path, flags, variables=FAULTS) as server,
        ThreadPoolExecutor(3) as pool,
    ):
        hanging = pool.submit(server.complete, prompt=[HANGS], max_tokens=4)
        wait_until(lambda: server.metric("psd_prompt_tokens_total") == 1)
        waiting = [pool.submit(server.complete, prompt=[9], max_tokens=4) for _ in range(2)]
        assert hanging.result().json()["error"]["code"] == "worker_died"
        ready = server.client.get("/ready")
        assert ready.status_code in (200, 503)  # restarting, unless that was quick
        assert [future.result().status_code for future in waiting] == [200, 200]


def test_a_stopped_idle_worker_is_noticed_and_replaced(faulty: ServerProcess) -> None:
    wait_until(faulty.is_ready, 60)
    restarts = faulty.metric("psd_worker_restarts_total")
    (pid,) = faulty.worker_pids()
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: faulty.metric("psd_worker_restarts_total") == restarts + 1)
    wait_until(lambda: not is_running(pid))
    assert post(faulty).status_code == 200


def test_a_batch_that_exceeds_the_memory_is_split_and_counted(faulty: ServerProcess) -> None:
    alone = post(faulty, prompt=[9, 8, 7], psd=SLOW).json()["choices"][0]["text"]
    before = faulty.metric("psd_forwards_out_of_memory_total")
    answers = post(faulty, prompt=[[EXCEEDS_MEMORY, 9], [9, 8, 7], [9, 8, 7]], psd=SLOW)
    assert [choice["text"] for choice in answers.json()["choices"][1:]] == [alone, alone]
    assert faulty.metric("psd_forwards_out_of_memory_total") > before


def test_other_replicas_go_on_while_one_dies(random_model_path: Path, tmp_path: Path) -> None:
    flags = ["--replicas", "2", "--max-num-seqs", "4"]
    body = {"model": "tiny", "max_tokens": 200, "ignore_eos": True, "psd": SLOW, "stream": True}
    with ServerProcess(random_model_path, tmp_path, flags, variables=FAULTS) as server:
        wait_until(lambda: server.client.get("/health").json()["workers"] == ["ready", "ready"], 60)
        url = f"{server.url}/v1/completions"
        with httpx.stream("POST", url, json=body | {"prompt": [9]}, timeout=60) as stream:
            lines = stream.iter_lines()
            next(lines)
            assert server.complete(prompt=[ABORTS], max_tokens=4).json()["error"]["code"] == "worker_died"
            assert server.client.get("/ready").status_code == 200
            rest = [line for line in lines if line]
        assert json.loads(rest[-2].removeprefix("data: "))["choices"][0]["finish_reason"] == "length"


def test_a_stopped_worker_ends_with_a_killed_server_whose_sockets_the_next_one_removes(
    random_model_path: Path, tmp_path: Path
) -> None:
    variables = {"TMPDIR": str(tmp_path)}
    (tmp_path / "psd-others").mkdir(mode=0o755)  # looks alike, but has no lock
    with ServerProcess(random_model_path, tmp_path, variables=variables) as server:
        (pid,) = server.worker_pids()
        os.kill(pid, signal.SIGSTOP)
        server.process.kill()
        server.process.wait()
        wait_until(lambda: not is_running(pid), 5)
        (left,) = [folder for folder in tmp_path.glob("psd-*") if folder.name != "psd-others"]
    with ServerProcess(random_model_path, tmp_path, variables=variables) as server:
        assert not left.exists()
        with ServerProcess(random_model_path, tmp_path, variables=variables) as other:
            assert server.complete(max_tokens=1).status_code == other.complete(max_tokens=1).status_code == 200
    assert [folder.name for folder in tmp_path.glob("psd-*")] == ["psd-others"]
