"""Throughput over replicas: a real server with 1, 2, … worker processes, and clients that ask again at once.

    .venv/bin/python -m benchmarks.scaling --replicas 1 2 --clients 8 --seconds 20

The work does not depend on the model's answers: the policy is greedy and the end-of-text token is ignored, so every
request costs the same forwards. Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from typing import IO

import httpx

START_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Load:
    """What each client asks for, again and again."""

    clients: int
    seconds: float
    max_tokens: int

    @property
    def body(self) -> dict[str, object]:
        """Of /v1/completions."""
        psd = {"policy": "greedy", "draft_depth": 0, "cache": "none"}
        return {"model": "psd-demo", "prompt": "Sort these numbers: 7, 9, 4.", "ignore_eos": True, "psd": psd} | {
            "max_tokens": self.max_tokens
        }


@dataclass(frozen=True, slots=True)
class Measurement:
    """Totals over the measured time, and the latency of single requests."""

    num_tokens: int
    num_requests: int
    seconds: float
    latencies: tuple[float, ...]


def main() -> None:
    """Measure every number of replicas and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1, help="torch's threads per worker")
    given = parser.parse_args()
    load = Load(given.clients, given.seconds, given.max_tokens)
    print("| replicas | tokens / s | ÷ one replica | requests / s | latency p50, s | latency p95, s |")
    print("|---|---|---|---|---|---|")
    base: float | None = None
    for replicas in given.replicas:
        result = measure(replicas, given.threads, load)
        rate = result.num_tokens / result.seconds
        base = rate if base is None else base
        cuts = statistics.quantiles(result.latencies, n=20)
        print(
            f"| {replicas} | {rate:.0f} | {rate / base:.2f} | {result.num_requests / result.seconds:.1f} "
            f"| {cuts[9]:.2f} | {cuts[18]:.2f} |",
            flush=True,
        )


def measure(replicas: int, threads: int, load: Load) -> Measurement:
    """Start a server, wait for all its workers, load it, stop it."""
    process = subprocess.Popen(
        [sys.executable, "-m", "server.cli", "serve", "--port", "0", "--replicas", str(replicas)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": str(threads)},
    )
    assert process.stdout is not None
    try:
        url = wait_listening(process.stdout)
        threading.Thread(target=process.stdout.read, daemon=True).start()  # a full pipe would stop the server
        with httpx.Client(base_url=url, timeout=300) as client:
            wait_ready(client, replicas)
            ask(client, load, seconds=2.0)
            return ask(client, load, load.seconds)
    finally:
        process.terminate()
        process.wait()


def wait_listening(lines: IO[str]) -> str:
    """The address that the server prints."""
    for line in lines:
        if "listening on " in line:
            return line.partition("listening on ")[2].partition(",")[0]
    raise SystemExit("the server ended before it listened")


def wait_ready(client: httpx.Client, replicas: int) -> None:
    """Until every worker has its model."""
    deadline = time.monotonic() + START_SECONDS
    while client.get("/health").json()["workers"] != ["ready"] * replicas:
        if time.monotonic() > deadline:
            raise SystemExit(f"the workers were not ready after {START_SECONDS:.0f} s")
        time.sleep(0.2)


def ask(client: httpx.Client, load: Load, seconds: float) -> Measurement:
    """Every client sends its next request when it has the answer to the last; what began in time counts to its end."""
    started = time.monotonic()
    results: list[tuple[int, float]] = []

    def run() -> None:
        while time.monotonic() < started + seconds:
            begun = time.monotonic()
            answer = client.post("/v1/completions", json=load.body)
            answer.raise_for_status()
            results.append((answer.json()["usage"]["completion_tokens"], time.monotonic() - begun))

    threads = [threading.Thread(target=run) for _ in range(load.clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    elapsed = time.monotonic() - started
    return Measurement(sum(n for n, _ in results), len(results), elapsed, tuple(latency for _, latency in results))


if __name__ == "__main__":
    main()
