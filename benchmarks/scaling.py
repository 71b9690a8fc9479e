"""Throughput over replicas: real servers with 1, 2, … worker processes, and clients that ask again at once.

    .venv/bin/python -m benchmarks.scaling --replicas 1 2 --clients 8 --seconds 10 --rounds 3

All servers run from the beginning and are loaded in turn, round after round: what else the machine does meets all of
them, so the ratios of a round mean more than the rates. The work does not depend on the model's answers: the policy is
greedy and the end-of-text token is ignored, so every request costs the same forwards. All compute in float32, since the
type that is measured to be faster might differ between them. Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import date
from typing import IO

import httpx

from benchmarks.decoding import cpu_name

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
    seconds: float
    latencies: tuple[float, ...]

    @property
    def tokens_per_second(self) -> float:
        """Of all clients together."""
        return self.num_tokens / self.seconds


def main() -> None:
    """Measure every number of replicas in every round and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=10.0, help="per server and round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1, help="torch's threads per worker")
    given = parser.parse_args()
    load = Load(given.clients, given.seconds, given.max_tokens)
    with ExitStack() as stack:
        clients = [stack.enter_context(serve(replicas, given.threads)) for replicas in given.replicas]
        for client in clients:
            ask(client, load, seconds=2.0)
        rounds = [[ask(client, load, load.seconds) for client in clients] for _ in range(given.rounds)]
    print(
        f"psd-demo, greedy without drafts or cache, {load.max_tokens} tokens per request, {load.clients} clients, "
        f"{given.threads} thread(s) per worker, {load.seconds:g} s per round; {os.cpu_count()} cores of {cpu_name()}, "
        f"{date.today()}\n"
    )
    print("| replicas | tokens / s, each round | ÷ the first line's, each round | latency p50, s | latency p95, s |")
    print("|---|---|---|---|---|")
    for index, replicas in enumerate(given.replicas):
        results = [measurements[index] for measurements in rounds]
        rates = ", ".join(f"{result.tokens_per_second:.0f}" for result in results)
        ratios = ", ".join(
            f"{measurements[index].tokens_per_second / measurements[0].tokens_per_second:.2f}"
            for measurements in rounds
        )
        cuts = statistics.quantiles([latency for result in results for latency in result.latencies], n=20)
        print(f"| {replicas} | {rates} | {ratios} | {cuts[9]:.2f} | {cuts[18]:.2f} |", flush=True)


@contextmanager
def serve(replicas: int, threads: int) -> Iterator[httpx.Client]:
    """A client of a server whose workers all have their model."""
    flags = ["--port", "0", "--replicas", str(replicas), "--threads", str(threads), "--dtype", "float32"]
    process = subprocess.Popen(
        [sys.executable, "-m", "server.cli", "serve", *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={name: value for name, value in os.environ.items() if not name.startswith("PSD_")},
    )
    assert process.stdout is not None
    try:
        url = wait_listening(process.stdout)
        threading.Thread(target=process.stdout.read, daemon=True).start()  # a full pipe would stop the server
        with httpx.Client(base_url=url, timeout=300) as client:
            wait_ready(client, replicas)
            yield client
    finally:
        process.terminate()
        process.wait()


def wait_listening(lines: IO[str]) -> str:
    """The address that the server prints: in its log, or, where that is silent, in the banner of one that is ready."""
    for line in lines:
        if "listening on " in line:
            return line.partition("listening on ")[2].partition(",")[0]
        if line.startswith("  url "):
            return line.split()[1]
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

    def run(_: int) -> list[tuple[int, float]]:
        results = []
        while time.monotonic() < started + seconds:
            begun = time.monotonic()
            answer = client.post("/v1/completions", json=load.body)
            answer.raise_for_status()
            results.append((answer.json()["usage"]["completion_tokens"], time.monotonic() - begun))
        return results

    with ThreadPoolExecutor(load.clients) as executor:
        answers = [answer for results in executor.map(run, range(load.clients)) for answer in results]
    elapsed = time.monotonic() - started
    return Measurement(sum(n for n, _ in answers), elapsed, tuple(latency for _, latency in answers))


if __name__ == "__main__":
    main()
