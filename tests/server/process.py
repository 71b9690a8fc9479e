"""A real server in a process of its own, for tests over loopback."""

from __future__ import annotations

import os
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

START_SECONDS = 120.0
STOP_SECONDS = 20.0
SERVE = (sys.executable, "-m", "server.cli", "serve")
SLOW = {"policy": "greedy", "draft_depth": 0, "cache": "none"}  # one forward per token


def wait_until(claim: Callable[[], bool], seconds: float = 20.0) -> None:
    """Poll until the claim holds; fail after `seconds`."""
    deadline = time.monotonic() + seconds
    while not claim():
        assert time.monotonic() < deadline, "the claim did not come true in time"
        time.sleep(0.01)


class ServerProcess:
    """`psd serve` on a free port. Use as a context manager; leaving it kills what is left."""

    def __init__(
        self,
        model: Path,
        folder: Path,
        flags: Sequence[str] = (),
        *,
        waits_ready: bool = True,
        variables: Mapping[str, str] | None = None,
        verify: ssl.SSLContext | bool = True,
        name: str = "tiny",
    ) -> None:
        """name: of the served model. variables: set in the server's environment beside those of this process.

        verify: whom to trust over TLS.
        """
        self._log_path = folder / f"server-{time.monotonic_ns()}.log"
        self._log = self._log_path.open("w")
        # Measured otherwise: what is equal in float32 need not be in bfloat16, where the batch decides near ties.
        dtype = () if "--dtype" in flags else ("--dtype", "float32")
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PSD_")}
        self.process = subprocess.Popen(
            [*SERVE, "--port", "0", "--model", str(model), "--served-model-name", name, *dtype, *flags],
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env=environment | {"OMP_NUM_THREADS": "1"} | dict(variables or {}),
            cwd=Path(__file__).parents[2],
        )
        self.client = httpx.Client()
        try:
            wait_until(lambda: "listening on " in self.log or self.process.poll() is not None, START_SECONDS)
            assert self.process.poll() is None, self.log
            self.url = self.log.partition("listening on ")[2].partition(",")[0]
            self.client = httpx.Client(base_url=self.url, timeout=60.0, verify=verify)
            if waits_ready:
                wait_until(self.is_ready, START_SECONDS)
        except BaseException:  # nobody else will end the process
            self.__exit__(None, None, None)
            raise

    @property
    def log(self) -> str:
        """Everything the server wrote so far, banner and log."""
        return self._log_path.read_text()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.client.close()
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._log.close()

    def is_ready(self) -> bool:
        """What /ready says."""
        return self.client.get("/ready").status_code == 200

    def worker_pids(self) -> list[int]:
        """Children of the API process."""
        tasks = Path(f"/proc/{self.process.pid}/task")
        return [int(pid) for task in tasks.iterdir() for pid in (task / "children").read_text().split()]

    def kill_worker(self) -> None:
        """SIGKILL to the one worker."""
        (pid,) = self.worker_pids()
        os.kill(pid, signal.SIGKILL)

    def metric(self, sample: str) -> float:
        """Value of one sample of /metrics, named with its labels as it stands there."""
        for line in self.client.get("/metrics").text.splitlines():
            name, _, value = line.rpartition(" ")
            if name == sample:
                return float(value)
        raise AssertionError(f"no sample {sample}")

    def complete(self, **fields: object) -> httpx.Response:
        """POST /v1/completions with defaults for model and prompt."""
        return self.client.post("/v1/completions", json={"model": "tiny", "prompt": "What is 7 + 5?"} | fields)

    def chat(self, **fields: object) -> httpx.Response:
        """POST /v1/chat/completions with defaults for model and messages."""
        messages = [{"role": "user", "content": "What is 7 + 5?"}]
        return self.client.post("/v1/chat/completions", json={"model": "tiny", "messages": messages} | fields)
