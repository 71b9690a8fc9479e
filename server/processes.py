"""The processes of one worker: rank 0, which talks to the API process, and the other ranks of its model, if any.

They live and die together: `ended` returns when any of them is gone, and `stop` ends and reaps every one.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from server.cores import WAIT_POLICY
from server.messages import WorkerConfig
from server.messages import encode_config as encode_worker_config

STOP_SECONDS: Final = 5.0  # until a process that should end is killed
SETTLE_SECONDS: Final = 0.2  # one rank's death takes others along: until all that will are gone

# A worker's tensors have another size with every batch. glibc would keep what it once got in holes that fit no other,
# and oneDNN a compiled kernel per shape, by default a thousand: hundreds of megabytes in an hour of mixed traffic.
WORKER_SETTINGS: Final[Mapping[str, str]] = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 20),  # bytes; larger pieces go back to the system when they are freed
    "MALLOC_TRIM_THRESHOLD_": str(1 << 20),
    WAIT_POLICY: "PASSIVE",
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "256",  # kernels; `models/shapes.py` keeps the shapes few
}

_BOOT: Final = "import sys; sys.path.insert(0, sys.argv.pop(1)); from server.worker import main; main()"


class WorkerProcesses:
    """One life of a worker. Owns its processes."""

    def __init__(self) -> None:
        self._ranks: list[asyncio.subprocess.Process] = []
        self._meeting: Path | None = None

    async def start(self, config: WorkerConfig, begun_fd: int, meeting: Path) -> None:
        """begun_fd: see WorkerConfig, for rank 0. meeting: path of a new file, by which the ranks find each other."""
        self._meeting = meeting
        for rank in range(config.tensor_parallel_size):
            own_fd = begun_fd if rank == 0 else -1
            own = msgspec.structs.replace(config, rank=rank, begun_fd=own_fd, meeting=str(meeting))
            self._ranks.append(await _spawn(own))

    @property
    def pid(self) -> int:
        """Process id of rank 0."""
        return self._ranks[0].pid

    async def ended(self) -> None:
        """Return once a process is gone."""
        waits = [asyncio.create_task(process.wait()) for process in self._ranks]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def describe_end(self, words: str = "") -> str:
        """Why the worker ended, once a process is gone or rank 0 said `words`; of several deaths, the likely first."""
        if len(self._ranks) > 1:
            await asyncio.sleep(SETTLE_SECONDS)
        codes = [(rank, process.returncode) for rank, process in enumerate(self._ranks)]
        gone = [(rank, code) for rank, code in codes if code is not None]
        killed = [entry for entry in gone if entry[1] < 0]
        if words and not killed:
            return words
        rank, code = (killed or gone)[0]
        return (f"rank {rank} " if rank else "") + _describe_exit(code)

    def kill(self) -> None:
        """End all of them now."""
        for process in self._ranks:
            if process.returncode is None:
                process.kill()

    async def stop(self) -> None:
        """End them, gently and then not, and wait for them: no zombie stays."""
        for process in self._ranks:
            if process.stdin is not None:
                process.stdin.close()
        waits = [process.wait() for process in self._ranks]
        try:
            await asyncio.wait_for(asyncio.gather(*waits), STOP_SECONDS)
        except TimeoutError:
            self.kill()
            for process in self._ranks:
                await process.wait()
        if self._meeting is not None:
            self._meeting.unlink(missing_ok=True)


def worker_environment(own: Mapping[str, str]) -> dict[str, str]:
    """What a worker is started with: `own`, and settings for its memory and threads where `own` has none."""
    return {**WORKER_SETTINGS, **own}


async def _spawn(config: WorkerConfig) -> asyncio.subprocess.Process:
    root = str(Path(__file__).resolve().parents[1])
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-c", _BOOT, root, encode_worker_config(config)),
        stdin=asyncio.subprocess.PIPE,
        env=worker_environment(os.environ),
        pass_fds=(config.begun_fd,) if config.begun_fd >= 0 else (),
        start_new_session=True,  # a Ctrl-C in the terminal is for the API process, which drains first
    )


def _describe_exit(code: int) -> str:
    return f"killed by signal {-code}" if code < 0 else f"exited with status {code}"
