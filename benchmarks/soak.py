"""Mixed traffic at three times what a server takes, for as long as asked; every answer is checked.

    python -m benchmarks.soak --seconds 1800

Starts a server of its own. Each distinct request is first asked alone; under load its answer must be the same, whoever
shares its forwards. Clients also leave early, send broken bodies and ask for other things. Exit status 1 if an answer
was lost or wrong, an error came that was not meant, or a given bound was exceeded.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import os
import platform
import random
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from benchmarks.mixture import Body, draw_requests, is_streamable
from benchmarks.own_server import OwnServer, growth_of, watch_memory

OVERLOAD = 3  # clients per sequence that the server takes, running and waiting together
PROBE_SECONDS = 0.05  # between two looks at /health
ANSWER_SECONDS = 120.0  # after which an answer counts as lost

BAD_BODIES: tuple[bytes, ...] = (
    b"",
    b"{",
    b"[]",
    b"\xff\xfe",
    b"[" * 10_000,
    b'{"model":"soak","prompt":"a","prompt":"b"}',
    b'{"model":"soak","prompt":"\\ud800"}',
    b'{"model":"soak","prompt":"a","n":1e99}',
    b'{"model":"soak","prompt":"a","max_tokens":-1}',
    b'{"model":"soak","prompt":[99999999]}',
    b'{"model":"soak","prompt":"a","psd":{"__proto__":1}}',
    b'{"model":"soak","prompt":"a","temperature":1e400}',
    b'{"model":"../../etc/passwd","prompt":"a"}',
    b'{"model":"soak","messages":[]}',
)


@dataclass(frozen=True, slots=True)
class Case:
    """One distinct request and the texts it must be answered with, one per choice."""

    path: str
    body: Body
    texts: tuple[str, ...]


@dataclass(slots=True)
class Result:
    """What the soak saw. Growth compares the last fifth of the time with the second one."""

    seconds: float
    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    growth: dict[str, float] = field(default_factory=dict)  # of resident memory, per process, as a ratio
    megabytes: dict[str, float] = field(default_factory=dict)  # at the end
    health_p99_seconds: float = 0.0

    @property
    def num_faults(self) -> int:
        """Lost, wrong and unintended answers."""
        return sum(self.counts[kind] for kind in ("lost", "wrong", "unintended"))

    def fault(self, kind: str, text: str) -> None:
        """Count it, and keep the first few to look at."""
        self.counts[kind] += 1
        if len(self.faults) < 10:
            self.faults.append(f"{kind}: {text[:300]}")


async def ask_alone(client: httpx.AsyncClient, drawn: Sequence[tuple[str, Body]]) -> list[Case]:
    """Each request's batch-of-one answer. What this model does not serve is left out."""
    cases = []
    for path, body in drawn:
        response = await client.post(path, json=body)
        if response.status_code == 400:
            continue
        response.raise_for_status()
        cases.append(Case(path, body, texts_of(response.json()["choices"])))
    assert cases, "the model serves none of the requests"
    return cases


def texts_of(choices: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """The text of every choice, in order."""
    ordered = sorted(choices, key=lambda choice: choice["index"])
    return tuple(choice["text"] if "text" in choice else choice["message"]["content"] for choice in ordered)


class Traffic:
    """Clients that share a list of cases and one result."""

    def __init__(self, client: httpx.AsyncClient, cases: Sequence[Case], result: Result, until: float) -> None:
        self._client = client
        self._cases = cases
        self._result = result
        self._until = until

    async def run_client(self, seed: int) -> None:
        """One client after another's request until the time is over. Never raises for what a server may answer."""
        chance = random.Random(seed)
        kinds = [self._ask, self._ask, self._stream, self._stream, self._leave, self._send_garbage, self._look_around]
        while time.monotonic() < self._until:
            try:
                await chance.choice(kinds)(chance)
            except (httpx.HTTPError, json.JSONDecodeError, KeyError, IndexError) as error:
                self._result.fault("lost", repr(error))

    def _is_served(self, response: httpx.Response, case: Case) -> bool:
        """Whether an answer came; a full queue is meant, any other refusal is not."""
        if response.status_code == 200:
            return True
        if response.status_code in (429, 503) and "retry-after" in response.headers:
            self._result.counts[f"refused {response.status_code}"] += 1
        else:
            self._result.fault("unintended", f"{response.status_code} for {case.body}")
        return False

    def _judge(self, case: Case, texts: tuple[str, ...]) -> None:
        if texts == case.texts:
            self._result.counts["right"] += 1
        else:
            self._result.fault("wrong", f"{case.body}: {texts} instead of {case.texts}")

    async def _ask(self, chance: random.Random) -> None:
        case = chance.choice(self._cases)
        response = await self._client.post(case.path, json=case.body)
        if self._is_served(response, case):
            self._judge(case, texts_of(response.json()["choices"]))
        else:
            await asyncio.sleep(chance.uniform(0.01, 0.2))  # a client in a hurry: Retry-After says a second

    async def _stream(self, chance: random.Random) -> None:
        case = chance.choice([case for case in self._cases if is_streamable(case.body)])
        options = {"granularity": chance.choice(["block", "frontier"])}
        body = case.body | {"stream": True, "stream_options": options}
        texts = [""] * len(case.texts)
        is_done = False
        async with self._client.stream("POST", case.path, json=body) as response:
            if not self._is_served(response, case):
                return
            async for line in response.aiter_lines():
                if line == "data: [DONE]":
                    is_done = True
                elif line.startswith("data: "):
                    chunk = json.loads(line.removeprefix("data: "))
                    for choice in chunk["choices"]:
                        text = choice["text"] if "text" in choice else choice["delta"].get("content") or ""
                        texts[choice["index"]] += text
        if is_done:
            self._judge(case, tuple(texts))
        else:
            self._result.fault("lost", f"no [DONE] for {case.body}")

    async def _leave(self, chance: random.Random) -> None:
        """Leave before, during or after the first chunks, streaming or not."""
        case = chance.choice(self._cases)
        body = case.body | {"stream": is_streamable(case.body) and chance.random() < 0.7}
        try:
            async with asyncio.timeout(chance.choice([0.001, 0.01, 0.05, 0.2])):
                await self._client.post(case.path, json=body)
        except TimeoutError:
            pass
        self._result.counts["left"] += 1

    async def _send_garbage(self, chance: random.Random) -> None:
        body = chance.choice(BAD_BODIES)
        headers = {"content-type": "application/json"}
        response = await self._client.post("/v1/completions", content=body, headers=headers)
        if 400 <= response.status_code < 500 and response.json()["error"]["message"]:
            self._result.counts["bad bodies refused"] += 1
        else:
            self._result.fault("unintended", f"{response.status_code} for {body[:60]!r}")

    async def _look_around(self, chance: random.Random) -> None:
        path = chance.choice(["/v1/models", "/metrics", "/ready", "/nope"])
        response = await self._client.get(path)
        expected = (404,) if path == "/nope" else (200,)
        if response.status_code not in expected:
            self._result.fault("unintended", f"{response.status_code} for {path}")


def probe_health(url: str, seconds: float) -> list[float]:
    """Seconds of every look at /health over one connection; in a process of its own, which nothing delays."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "localhost", parts.port, timeout=60)
    delays = []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        started = time.perf_counter()
        connection.request("GET", "/health")
        response = connection.getresponse()
        response.read()
        assert response.status == 200
        delays.append(time.perf_counter() - started)
        time.sleep(PROBE_SECONDS)
    connection.close()
    return delays


async def soak(server: OwnServer, url: str, seconds: float, num_clients: int, seed: int) -> Result:
    """The whole of it, against a server that is ready."""
    limits = httpx.Limits(max_connections=num_clients + 8, max_keepalive_connections=num_clients)
    async with httpx.AsyncClient(base_url=url, timeout=ANSWER_SECONDS, limits=limits) as client:
        cases = await ask_alone(client, draw_requests(random.Random(seed), 40))
        result = Result(seconds)
        result.counts["distinct requests"] = len(cases)
        until = time.monotonic() + seconds
        traffic = Traffic(client, cases, result, until)
        samples: list[dict[str, int]] = []
        with ProcessPoolExecutor(1) as pool:
            probing = asyncio.get_running_loop().run_in_executor(pool, probe_health, url, seconds)
            clients = [traffic.run_client(seed + index) for index in range(num_clients)]
            await asyncio.gather(watch_memory(server, until, samples), *clients)
            delays = sorted(await probing)
    result.health_p99_seconds = delays[int(0.99 * (len(delays) - 1))]
    result.growth = growth_of(samples)
    result.megabytes = {name: size / 1e6 for name, size in samples[-1].items()}
    for word in ("Traceback", "request failed"):
        if word in server.log:
            result.fault("unintended", f"{word} in the log")
    return result


def figures_of(result: Result, num_clients: int) -> Body:
    """Everything, for a program."""
    return {
        "seconds": result.seconds,
        "clients": num_clients,
        "counts": dict(result.counts),
        "faults": result.faults,
        "growth": result.growth,
        "megabytes": result.megabytes,
        "health_p99_seconds": result.health_p99_seconds,
    }


def report(result: Result, num_clients: int) -> str:
    """A few lines for a person."""
    growth = ", ".join(
        f"{name} {ratio:+.1%} ({result.megabytes[name]:.0f} MB)" for name, ratio in result.growth.items()
    )
    counts = ", ".join(f"{count} {kind}" for kind, count in sorted(result.counts.items()))
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    return "\n".join(
        (
            f"{result.seconds:g} s, {num_clients} clients, {machine}",
            f"requests  {counts}",
            f"faults    {result.num_faults} (lost {result.counts['lost']}, wrong {result.counts['wrong']}, "
            f"unintended {result.counts['unintended']})",
            f"memory    {growth}",
            f"/health   p99 {result.health_p99_seconds * 1000:.0f} ms",
            *result.faults,
        )
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0 if nothing was lost, wrong or unintended and no given bound was exceeded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long the traffic lasts (default: 60)")
    parser.add_argument("--model", help="checkpoint folder; absent: the built-in model")
    parser.add_argument("--max-num-seqs", type=int, default=8, help="sequences that run at once (default: 8)")
    parser.add_argument("--max-waiting", type=int, default=16, help="sequences that wait (default: 16)")
    parser.add_argument(
        "--dtype",
        default="float32",
        help="in bfloat16 company may decide near ties, which then count as wrong (default: float32)",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-growth", type=float, help="bound on the growth of resident memory, as a ratio")
    parser.add_argument("--max-health-p99", type=float, help="bound on the 99th percentile of /health, in seconds")
    parser.add_argument("--json", type=Path, help="file to write the figures to")
    given = parser.parse_args(arguments)
    flags = ["--max-num-seqs", str(given.max_num_seqs), "--max-waiting", str(given.max_waiting)]
    flags += ["--dtype", given.dtype]
    num_clients = OVERLOAD * (given.max_num_seqs + given.max_waiting)
    with OwnServer(given.model, flags) as server:
        url = server.wait_ready()
        result = asyncio.run(soak(server, url, given.seconds, num_clients, given.seed))
    print(report(result, num_clients))
    if given.json is not None:
        given.json.write_text(json.dumps(figures_of(result, num_clients), indent=2))
    is_too_large = given.max_growth is not None and max(result.growth.values()) > given.max_growth
    is_too_slow = given.max_health_p99 is not None and result.health_p99_seconds > given.max_health_p99
    return int(bool(result.num_faults) or is_too_large or is_too_slow)


if __name__ == "__main__":
    sys.exit(main())
