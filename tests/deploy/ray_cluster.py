"""A real local Ray cluster with the application on it. As a program it is the driver, which lives until stdin closes.

The driver is a process of its own: Ray does not end cleanly inside a test process that turns warnings into errors.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from tests.deploy.ports import free_port
from tests.server.process import wait_until

START_SECONDS = 300.0
ROOT = Path(__file__).parents[2]


class RayCluster:
    """One node, one proxy on a free port, two replicas of a model. Use as a context manager."""

    def __init__(self, model: Path, folder: Path) -> None:
        self.name = f"psd-test-{os.getpid()}"
        port = free_port()
        self._log_path = folder / "ray.log"
        self._log = self._log_path.open("w")
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PSD_")}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.deploy.ray_cluster", self.name, str(model), str(port)],
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

    def kill_replica(self) -> None:
        """SIGKILL to one replica's process: no farewell, as when a machine is lost."""
        os.kill(self.replica_pids()[0], signal.SIGKILL)


def main(name: str, model: str, port: str) -> None:
    """Start cluster, proxy and application; say so; stay until stdin closes."""
    import ray
    from ray import serve

    from server.rayserve import RayArguments, build

    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": int(port)})
        flags = {"model": model, "served_model_name": "tiny", "device": "cpu"}
        arguments = RayArguments(flags=flags, min_replicas=2, max_replicas=2, num_gpus=0, num_cpus=1)
        serve.run(build(arguments), name=name)
        print("serving", flush=True)
        sys.stdin.read()
        serve.shutdown()
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
