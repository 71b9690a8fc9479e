"""A worker that the system cannot start: tried again, then given up in words, and nothing of it stays open."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from psd_core.config import EngineConfig
from server.messages import ToServer, WorkerConfig
from server.replica import MAX_FAILED_STARTS, Replica


class Owner:
    """Hears of deaths."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def on_ready(self, replica: Replica) -> None:
        raise AssertionError("nothing was started")

    def on_message(self, replica: Replica, message: ToServer) -> None:
        raise AssertionError("nothing was started")

    def on_begun(self, replica: Replica, request_ids: Sequence[str]) -> None:
        raise AssertionError("nothing was started")

    def on_down(self, replica: Replica, reason: str) -> None:
        self.reasons.append(reason)


def pipes() -> set[str]:
    """Those that this process has open."""
    found = set()
    for link in Path("/proc/self/fd").iterdir():
        try:
            target = str(link.readlink())
        except FileNotFoundError:  # the one that listed the folder
            continue
        if target.startswith("pipe:"):
            found.add(target)
    return found


def test_a_worker_that_cannot_be_started_is_tried_again_and_then_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-such-interpreter"))
    monkeypatch.setattr("server.replica.FIRST_BACKOFF_SECONDS", 0.01)
    owner = Owner()
    config = WorkerConfig(
        checkpoint="",
        tokenizer="",
        dtype="auto",
        device="cpu",
        replica_index=0,
        engine=EngineConfig(),
        log_level="info",
        log_format="text",
        address="",
        tensor_parallel_size=2,
    )

    async def live() -> Replica:
        replica = Replica(config, tmp_path, owner, 1.0)
        await replica.run()
        return replica

    before = pipes()
    replica = asyncio.run(live())
    assert (replica.state, len(owner.reasons)) == ("failed", MAX_FAILED_STARTS)
    assert "it could not be started" in replica.failure
    assert "no-such-interpreter" in replica.failure
    assert pipes() <= before
