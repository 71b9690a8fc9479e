"""Thousands of clients that leave, before, while and after they are queued, streaming or not: nothing may stay behind.

    python -m benchmarks.leavers --clients 10000

Starts a server of its own. Exit status 1 unless every gauge is back at zero within a second of the last one's leaving,
the server still answers, nothing failed in its log, and its memory grew by no more than the bound.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import struct
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from socket import SO_LINGER, SOL_SOCKET
from typing import Any
from urllib.parse import urlsplit

import httpx

from benchmarks.own_server import OwnServer, growth_of, watch_memory

CLIENTS_AT_ONCE = 48
IDLE_SECONDS = 1.0
ANSWER_SECONDS = 60.0  # for what a leaver waits for before it leaves
RESET = struct.pack("ii", 1, 0)  # closing sends a reset instead of an end
HEAD = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: "


@dataclass(frozen=True, slots=True)
class Leaver:
    """How one client behaves before it leaves."""

    kind: str  # half: sends half a request; at once; later; chunk: after a chunk of its stream; done: after all of it
    is_streaming: bool
    has_reset: bool
    seconds: float  # of waiting, for `later`
    body: bytes


@dataclass(frozen=True, slots=True)
class Result:
    """What stayed behind."""

    kinds: Counter[str]
    seconds: float
    idle_seconds: float  # from the last one's leaving until every gauge is zero; inf if that did not come
    growth: dict[str, float]
    megabytes: dict[str, float]
    faults: tuple[str, ...]


def draw_leavers(count: int, seed: int) -> Iterator[Leaver]:
    """Mixed leavers, the same for one seed."""
    chance = random.Random(seed)
    for _ in range(count):
        kind = chance.choice(("half", "at once", "later", "later", "chunk", "chunk", "done"))
        is_streaming = kind in ("chunk", "done") or chance.random() < 0.5
        fields: dict[str, Any] = {
            "model": "soak",
            "prompt": "leave " * chance.randint(1, 20),
            "max_tokens": 8 if kind == "done" else chance.choice([16, 64, 256]),
            "ignore_eos": True,
            "n": chance.choice([1, 1, 2, 4]),
            "stream": is_streaming,
            "psd": {
                "policy": "greedy",
                "cache": chance.choice(["none", "prefix", "dual"]),
                "draft_depth": chance.randint(0, 3),
            },
        }
        if is_streaming and chance.random() < 0.3:
            fields["diffusing"] = True
        yield Leaver(kind, is_streaming, chance.random() < 0.5, chance.uniform(0, 0.1), json.dumps(fields).encode())


async def leave(host: str, port: int, leaver: Leaver) -> None:
    """Do as the leaver does. Refusals (the queue is full) are answers like any other here."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        body = leaver.body[: len(leaver.body) // 2] if leaver.kind == "half" else leaver.body
        writer.write(f"{HEAD}{len(leaver.body)}\r\nConnection: close\r\n\r\n".encode() + body)
        await writer.drain()
        async with asyncio.timeout(ANSWER_SECONDS):
            if leaver.kind == "later":
                await asyncio.sleep(leaver.seconds)
            elif leaver.kind == "chunk":
                while (line := await reader.readline()) and not line.startswith((b"data:", b'{"error"')):
                    pass
            elif leaver.kind == "done":
                await reader.read()
    finally:
        if leaver.has_reset:
            writer.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_LINGER, RESET)
        writer.close()


async def run_leavers(server: OwnServer, url: str, count: int, seed: int) -> Result:
    """Let them all come and leave, so many at once."""
    parts = urlsplit(url)
    host, port = parts.hostname or "localhost", parts.port or 80
    leavers = draw_leavers(count, seed)
    kinds: Counter[str] = Counter()
    faults: list[str] = []
    samples: list[dict[str, int]] = []

    async def come_and_leave() -> None:
        for leaver in leavers:
            kinds[leaver.kind] += 1
            try:
                await leave(host, port, leaver)
            except (OSError, TimeoutError) as error:
                faults.append(f"{leaver.kind}: {error!r}")

    started = time.monotonic()
    watching = asyncio.create_task(watch_memory(server, float("inf"), samples))
    await asyncio.gather(*(come_and_leave() for _ in range(CLIENTS_AT_ONCE)))
    left = time.monotonic()
    watching.cancel()
    async with httpx.AsyncClient(base_url=url, timeout=ANSWER_SECONDS) as client:
        while not await is_idle(client) and time.monotonic() < left + ANSWER_SECONDS:
            await asyncio.sleep(0.01)
        idle = time.monotonic() - left
        answer = await client.post("/v1/completions", json={"model": "soak", "prompt": "a", "max_tokens": 4})
    if answer.status_code != 200:
        faults.append(f"afterwards the server answered {answer.status_code}")
    faults += [f"{word} in the log" for word in ("Traceback", "request failed") if word in server.log]
    megabytes = {name: size / 1e6 for name, size in samples[-1].items()}
    return Result(kinds, left - started, idle, growth_of(samples), megabytes, tuple(faults))


async def is_idle(client: httpx.AsyncClient) -> bool:
    """Whether nothing runs, waits or holds cache."""
    names = ("psd_requests_running", "psd_requests_waiting", "psd_kv_cache_usage_ratio")
    lines = (await client.get("/metrics")).text.splitlines()
    return all(float(line.rpartition(" ")[2]) == 0 for line in lines if line.startswith(names))


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0 if nothing stayed behind."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=10_000, help="how many come and leave (default: 10000)")
    parser.add_argument("--model", help="checkpoint folder; absent: the built-in model")
    parser.add_argument(
        "--dtype", default="float32", help="bfloat16 adds kernels that oneDNN keeps, within a bound (default: float32)"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-growth", type=float, default=0.02, help="bound on memory's growth (default: 0.02)")
    parser.add_argument(
        "--max-idle", type=float, default=IDLE_SECONDS, help="bound on seconds until all is zero (default: 1)"
    )
    parser.add_argument("--json", type=Path, help="file to write the figures to")
    given = parser.parse_args(arguments)
    flags = ["--max-num-seqs", "16", "--max-waiting", "64", "--dtype", given.dtype]
    with OwnServer(given.model, flags) as server:
        result = asyncio.run(run_leavers(server, server.wait_ready(), given.clients, given.seed))
    growth = ", ".join(f"{name} {by:+.1%} ({result.megabytes[name]:.0f} MB)" for name, by in result.growth.items())
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(result.kinds.items()))
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    print(f"{given.clients} leavers ({kinds}) in {result.seconds:.0f} s, {CLIENTS_AT_ONCE} at once, {machine}")
    print(f"gauges at zero after {result.idle_seconds:.2f} s; memory: {growth}; faults: {len(result.faults)}")
    print(*result.faults[:10], sep="\n")
    if given.json is not None:
        figures = {"kinds": result.kinds, "idle_seconds": result.idle_seconds, "growth": result.growth}
        given.json.write_text(json.dumps(figures | {"faults": result.faults}, indent=2))
    is_too_large = max(result.growth.values(), default=0.0) > given.max_growth
    return int(bool(result.faults) or is_too_large or result.idle_seconds > given.max_idle)


if __name__ == "__main__":
    sys.exit(main())
