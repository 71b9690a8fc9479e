"""What HTTP and the worker's socket add to the engine, and what a thousand open streams weigh.

    python -m benchmarks.server --streams 32 --seconds 15 --idle 1000

Both sides of a comparison are of one run. *Added* is a request's time as the client sees it, from the first byte sent
to the last one read, less the engine's own time for it, which the answer reports (queue and decode seconds). The
client's work and the server's share this machine, so the figures contain both.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import statistics
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import torch

from benchmarks.measuring import load_task, machine
from benchmarks.scaling import wait_listening
from benchmarks.startup import is_ready
from psd_core.assets import demo_path
from psd_core.config import DecoderConfig, EngineConfig
from psd_core.engine import Engine
from psd_core.models.threads import faster_threads
from psd_core.request import Request
from server.cores import usable_cores

START_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Answer:
    """One stream, in seconds."""

    added: float
    first: float  # until the first event
    tokens: int


class Streams:
    """Streams of one server, over plain sockets: a client library would cost more than the server."""

    def __init__(self, url: str, max_tokens: int) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname, parts.port
        self._max_tokens = max_tokens

    async def ask(self, prompt: str) -> Answer:
        """One streamed completion on a connection of its own that is open already."""
        body = {"model": "psd-demo", "prompt": prompt, "max_tokens": self._max_tokens, "stream": True}
        body |= {"stream_options": {"include_usage": True}}
        payload = json.dumps(body).encode()
        reader, writer = await asyncio.open_connection(self._host, self._port)
        try:
            started = time.perf_counter()
            writer.write(
                b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nconnection: close\r\n"
                b"content-length: %d\r\n\r\n%s" % (len(payload), payload)
            )
            first = 0.0
            figures: dict[str, float] = {}
            num_tokens = 0
            async for line in reader:
                if line.startswith(b"data: {"):
                    first = first or time.perf_counter() - started
                    event = json.loads(line[6:])
                    figures = event.get("psd", figures)
                    num_tokens = (event.get("usage") or {"completion_tokens": num_tokens})["completion_tokens"]
            ended = time.perf_counter() - started
        finally:
            writer.close()
        engine = figures["queue_seconds"] + figures["decode_seconds"]
        return Answer(ended - engine, first, num_tokens)

    async def load(self, prompts: list[str], at_once: int, seconds: float) -> list[Answer]:
        """Every one of so many clients asks again and again."""
        answers: list[Answer] = []
        until = time.perf_counter() + seconds

        async def client(index: int) -> None:
            turn = index
            while time.perf_counter() < until:
                answers.append(await self.ask(prompts[turn % len(prompts)]))
                turn += at_once

        await asyncio.gather(*(client(index) for index in range(at_once)))
        return answers

    async def hold(self, prompt: str, count: int, pid: int) -> tuple[int, int, int]:
        """(resident bytes before, with so many streams open, streams that ended well)."""
        before = resident_bytes(pid)
        tasks = [asyncio.create_task(self.ask(prompt)) for _ in range(count)]
        most = before
        while not all(task.done() for task in tasks):
            most = max(most, resident_bytes(pid))
            await asyncio.sleep(0.05)
        return before, most, sum(task.exception() is None for task in tasks)


def resident_bytes(pid: int) -> int:
    """What a process holds in memory."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


def engine_rate(given: argparse.Namespace) -> tuple[float, list[str], str]:
    """(tokens per second of the engine alone at the same concurrency, the prompts, the machine)."""
    task = load_task(demo_path(), given.dtype, 70)
    torch.set_num_threads(faster_threads(task.model.spec, task.model.dtype, usable_cores()))  # as the worker does
    engine = Engine(task.model, EngineConfig(max_num_seqs=64))
    tokens = sent = opened = 0
    started = time.perf_counter()
    while time.perf_counter() < started + given.seconds:
        while opened < given.streams:
            prompt = task.prompts[sent % len(task.prompts)]
            engine.add(Request(str(sent), prompt, given.max_tokens, DecoderConfig(), stop_ids=task.stop_ids))
            sent, opened = sent + 1, opened + 1
        for finished in engine.step().finished:
            tokens += finished.figures.generated_tokens
            opened -= 1
    rate = tokens / (time.perf_counter() - started)
    return rate, [problem.prompt for problem in task.problems], machine(task.model, "wall")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--idle", type=int, default=1000)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--dtype", default="auto")
    given = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, 4 * given.idle), hard), hard))
    rate, prompts, where = engine_rate(given)
    flags = ["--port", "0", "--dtype", given.dtype, "--max-waiting", str(2 * given.idle + 100), "--draft-depth", "3"]
    process = subprocess.Popen(
        [sys.executable, "-m", "server.cli", "serve", *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"PSD_LOG_LEVEL": "warning"},
    )
    assert process.stdout is not None
    try:
        url = wait_listening(process.stdout)
        threading.Thread(target=process.stdout.read, daemon=True).start()  # a full pipe would stop the server
        deadline = time.perf_counter() + START_SECONDS
        while not is_ready(url) and time.perf_counter() < deadline:
            time.sleep(0.05)
        streams = Streams(url, given.max_tokens)
        asyncio.run(streams.load(prompts, given.streams, 2.0))
        answers = asyncio.run(streams.load(prompts, given.streams, given.seconds))
        before, most, well = asyncio.run(streams.hold(prompts[0], given.idle, process.pid))
    finally:
        process.terminate()
        process.wait()
    added = statistics.quantiles([answer.added for answer in answers], n=100)
    served = sum(answer.tokens for answer in answers) / given.seconds
    print(f"Built-in model, {given.streams} streams for {given.seconds:g} s, max_tokens {given.max_tokens}, {where}.\n")
    print("| | |\n|---|---|")
    print(f"| added by HTTP and IPC, median | {1e3 * added[49]:.1f} ms |")
    print(f"| added, 99th percentile | {1e3 * added[98]:.1f} ms |")
    print(f"| tokens / s over HTTP ÷ in-process engine | {served:.0f} ÷ {rate:.0f} = {served / rate:.2f} |")
    print(f"| API process, resident before | {before / 2**20:.0f} MiB |")
    print(f"| with {given.idle} open streams ({well} ended well) | {most / 2**20:.0f} MiB |")


if __name__ == "__main__":
    main()
