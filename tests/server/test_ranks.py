"""A worker of two processes: it answers as one does, and lives and dies as one."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from psd_core.errors import CheckpointError, ConfigError
from psd_core.models.group import Alone
from psd_core.models.shard import Shard
from server.boot import read_source, worker_config
from server.ranks import load_part
from server.settings import resolve
from tests.server.process import SLOW, ServerProcess, wait_until


@pytest.fixture
def ranks(random_model_path: Path, tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(random_model_path, tmp_path, ["--tensor-parallel-size", "2"]) as process:
        yield process


def is_running(pid: int) -> bool:
    """Whether the process is there and no zombie."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_two_ranks_answer_as_one_and_die_together(ranks: ServerProcess, random_server: ServerProcess) -> None:
    for psd in ({"draft_depth": 3}, {"draft_depth": 0, "cache": "dual"}):
        body = {"prompt": [[9, 8, 7], [20, 21]], "max_tokens": 40, "ignore_eos": True, "psd": psd}
        answers = [each.complete(**body).json() for each in (ranks, random_server)]
        texts = [[choice["text"] for choice in answer["choices"]] for answer in answers]
        assert texts[0] == texts[1]
    assert "rank 1 of 2 holds" in ranks.log

    old_pids = ranks.worker_pids()
    assert len(old_pids) == 2
    body = {"model": "tiny", "prompt": [9], "max_tokens": 400, "ignore_eos": True, "psd": SLOW, "stream": True}
    with httpx.stream("POST", f"{ranks.url}/v1/completions", json=body, timeout=60) as stream:
        lines = stream.iter_lines()
        next(lines)
        os.kill(max(old_pids), signal.SIGKILL)  # rank 1: the later started
        rest = [line for line in lines if line]
    assert rest[-1] == "data: [DONE]"
    error = json.loads(rest[-2].removeprefix("data: "))["error"]
    assert error["code"] == "worker_died"
    assert "rank 1 killed by signal 9" in error["message"]

    wait_until(ranks.is_ready, 120)
    pids = ranks.worker_pids()
    assert len(pids) == 2
    assert not set(pids) & set(old_pids)
    assert not any(is_running(pid) for pid in old_pids)
    assert ranks.complete(max_tokens=4).status_code == 200

    os.kill(max(pids), signal.SIGSTOP)  # a rank that hangs does not keep the server from ending
    ranks.process.terminate()
    assert ranks.process.wait(30) == 0
    assert not any(is_running(pid) for pid in pids)


def test_wrong_numbers_of_ranks_are_refused() -> None:
    with pytest.raises(ConfigError, match="--tensor-parallel-size must be between 1 and 64, got '0'"):
        resolve({"tensor_parallel_size": ["0"]}, {})
    with pytest.raises(ConfigError, match=r"--device must be auto, cpu or cuda .* above 1, got 'cuda:1'"):
        resolve({"tensor_parallel_size": ["2"], "device": ["cuda:1"]}, {})


def test_a_model_that_ranks_cannot_share_is_refused_with_the_reason(random_model_path: Path) -> None:
    given = {"model": [str(random_model_path)], "tensor_parallel_size": ["3"]}
    settings = resolve(given, {})
    config = worker_config(settings, asyncio.run(read_source(settings.model)))
    with pytest.raises(CheckpointError, match="tensor_parallel_size must divide the model's 2 attention heads, got 3"):
        load_part(config, Alone(Shard(0, 3)), lambda done, total: None)
