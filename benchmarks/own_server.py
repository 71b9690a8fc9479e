"""A server of a benchmark's own, and how much memory it holds over time."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import httpx

SAMPLE_SECONDS = 0.5  # between two looks at the memory
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class OwnServer:
    """`psd serve` on a free port, one thread for its forwards. A context manager."""

    def __init__(self, model: str | None, flags: Sequence[str]) -> None:
        given = [] if model is None else ["--model", model]
        command = [sys.executable, "-m", "server.cli", "serve", "--port", "0", "--served-model-name", "soak"]
        self._log = tempfile.NamedTemporaryFile("w+", prefix="psd-soak-", suffix=".log")  # noqa: SIM115  # it lives as long as the server
        self.process = subprocess.Popen(
            [*command, *given, *flags],
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env=os.environ | {"OMP_NUM_THREADS": "1"},  # batched and single rows then agree bit for bit
            cwd=Path(__file__).parents[1],
        )

    def __enter__(self) -> OwnServer:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._log.close()

    @property
    def log(self) -> str:
        """What it wrote so far."""
        return Path(self._log.name).read_text()

    def wait_ready(self, seconds: float = 300.0) -> str:
        """Its URL, once it would serve a request."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self.process.poll() is None:
            url = self.log.partition("listening on ")[2].partition(",")[0]
            try:
                if url and httpx.get(f"{url}/ready", timeout=10).status_code == 200:
                    return url
            except httpx.TransportError:
                pass
            time.sleep(0.1)
        raise RuntimeError(f"the server did not become ready:\n{self.log}")

    def memory(self) -> dict[str, int]:
        """Resident bytes of the API process and of its workers."""
        tasks = Path(f"/proc/{self.process.pid}/task").iterdir()
        workers = [int(pid) for task in tasks for pid in (task / "children").read_text().split()]
        pids = {"api": self.process.pid} | {f"worker {index}": pid for index, pid in enumerate(sorted(workers))}
        return {name: int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES for name, pid in pids.items()}


async def watch_memory(server: OwnServer, until: float, samples: list[dict[str, int]]) -> None:
    """Sample until the time is over."""
    while time.monotonic() < until:
        with contextlib.suppress(OSError):  # a process or thread ended while it was looked at
            samples.append(server.memory())
        await asyncio.sleep(SAMPLE_SECONDS)


def growth_of(samples: Sequence[Mapping[str, int]]) -> dict[str, float]:
    """Mean of the last fifth ÷ mean of the second fifth - 1, per process; the first fifth is warming up."""
    fifth = max(1, len(samples) // 5)
    early, late = samples[fifth : 2 * fifth] or samples[:1], samples[-fifth:]
    names = [name for name in late[-1] if all(name in sample for sample in (*early, *late))]
    return {
        name: (sum(sample[name] for sample in late) / len(late)) / (sum(sample[name] for sample in early) / len(early))
        - 1.0
        for name in names
    }
