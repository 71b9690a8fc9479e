"""A real local Ray cluster with the application on it. As a program it is the driver, which lives until stdin closes.

The driver is a process of its own: Ray does not end cleanly inside a test process that turns warnings into errors.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from tests.deploy.ports import free_port
from tests.server.process import wait_until

START_SECONDS = 300.0
ROOT = Path(__file__).parents[2]


class RayCluster:
    """One node, one proxy on a free port, the application with a model. Use as a context manager."""

    def __init__(self, model: Path, folder: Path, num_gpus: int, arguments: Mapping[str, float]) -> None:
        """num_gpus: that Ray is told of; the machine needs none. arguments: of `build`, the flags aside."""
        self.name = f"psd-test-{os.getpid()}"
        port = free_port()
        flags = {"model": str(model), "served_model_name": "tiny", "drain_timeout": 300}
        told = [f"{key}={value}" for key, value in arguments.items()] + [f"flags={json.dumps(flags)}"]
        self._log_path = folder / "ray.log"
        self._log = self._log_path.open("w")
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PSD_")}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.deploy.ray_cluster", self.name, str(port), str(num_gpus), *told],
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env=environment
            | {
                "PYTHONPATH": str(ROOT),  # replicas import this checkout, wherever Ray starts them
                "RAY_USAGE_STATS_ENABLED": "0",
                "RAY_AUTH_MODE": "token",
                "RAY_AUTH_TOKEN": secrets.token_hex(),  # else Ray writes one into the home folder
                "RAY_raylet_start_wait_time_s": "240",
            },
        )
        self.client = httpx.Client()
        try:
            wait_until(lambda: "serving\n" in self.log or self._process.poll() is not None, START_SECONDS)
            assert self._process.poll() is None, self.log
            self.client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120)
        except BaseException:  # nobody else will end the process
            self.__exit__(None, None, None)
            raise

    @property
    def log(self) -> str:
        """What driver and replicas wrote so far."""
        return self._log_path.read_text()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.client.close()
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def targets(self) -> dict[str, str]:
        """Replica id → address of its metrics."""
        found = self.client.get("/metrics/targets").json()
        return {entry["labels"]["replica"]: entry["targets"][0] for entry in found}

    def metric(self, address: str, sample: str) -> float:
        """Value of one sample of one replica."""
        text = httpx.get(f"http://{address}/metrics", timeout=30).text
        (line,) = [line for line in text.splitlines() if line.rpartition(" ")[0] == sample]
        return float(line.rpartition(" ")[2])

    def replica_pids(self) -> list[int]:
        """Processes that are replicas of this application; Ray writes the names into their command lines."""
        title = f"ray::ServeReplica:{self.name}:PSD".encode()
        found = []
        for folder in Path("/proc").iterdir():
            try:
                if folder.name.isdigit() and (folder / "cmdline").read_bytes().startswith(title):
                    found.append(int(folder.name))
            except OSError:  # it ended meanwhile
                continue
        return sorted(found)

    def kill_replica(self) -> list[int]:
        """SIGKILL to one replica's process: no farewell, as when a machine is lost. Its workers' process ids."""
        pid = self.replica_pids()[0]
        workers = worker_pids(pid)
        os.kill(pid, signal.SIGKILL)
        return workers


def worker_pids(replica_pid: int) -> list[int]:
    """The workers of a replica, which are its children."""
    found = []
    for task in Path(f"/proc/{replica_pid}/task").iterdir():
        with contextlib.suppress(OSError):  # the thread ended meanwhile
            found += [int(pid) for pid in (task / "children").read_text().split()]
    return [pid for pid in found if b"server.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def is_running(pid: int) -> bool:
    """Whether there is such a process, and not only what is left of it until somebody reaps it."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes() != b""
    except OSError:
        return False


def main(name: str, port: str, num_gpus: str, *arguments: str) -> None:
    """Start cluster and proxy, run the application by the command of the docs, say so, stay until stdin closes."""
    import ray
    from ray import serve
    from ray.serve.scripts import cli

    ray.init("local", num_cpus=4, num_gpus=int(num_gpus), include_dashboard=False, log_to_driver=False)
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": int(port)})
        cli(["run", "--non-blocking", "--name", name, "server.rayserve:build", *arguments], standalone_mode=False)
        print("serving", flush=True)
        sys.stdin.read()
        serve.shutdown()
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
