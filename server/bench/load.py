"""How requests are offered: so many clients at once (closed loop), or so many arrivals per second (open loop)."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from server.bench.prompts import Prompt

# Sends the prompt and waits for its answer; the number is when it was due, by time.perf_counter.
Ask = Callable[[Prompt, float], Coroutine[None, None, None]]


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """Clients that each send their next request when the last one is answered."""

    concurrency: int

    @property
    def label(self) -> str:
        return f"{self.concurrency} at once"

    @property
    def size(self) -> float:
        """Where the level stands on a plot's axis."""
        return self.concurrency


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """Arrivals of a Poisson process, whether earlier requests are answered or not."""

    rate: float  # requests per second

    @property
    def label(self) -> str:
        return f"{self.rate:g} per second"

    @property
    def size(self) -> float:
        """Where the level stands on a plot's axis."""
        return self.rate


Load = ClosedLoop | OpenLoop


async def offer(load: Load, prompts: Sequence[Prompt], ask: Ask, seed: int, stop: asyncio.Event) -> None:
    """Send every prompt once and wait for the answers; what is open when `stop` comes is cancelled."""
    match load:
        case ClosedLoop(concurrency):
            waiting = iter(prompts)
            num_clients = min(concurrency, len(prompts))
            work: asyncio.Future[Any] = asyncio.gather(*(_client(waiting, ask) for _ in range(num_clients)))
        case OpenLoop(rate):
            work = asyncio.ensure_future(_arrive(prompts, ask, arrivals(rate, len(prompts), seed)))
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait((work, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not work.done():
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        return
    work.result()


def arrivals(rate: float, count: int, seed: int) -> list[float]:
    """Seconds after the beginning at which requests are due: the same for one seed, whatever the server does."""
    chance = random.Random(seed)
    due, result = 0.0, []
    for _ in range(count):
        due += chance.expovariate(rate)
        result.append(due)
    return result


async def _client(waiting: Iterator[Prompt], ask: Ask) -> None:
    for prompt in waiting:
        await ask(prompt, time.perf_counter())


async def _arrive(prompts: Sequence[Prompt], ask: Ask, due: Sequence[float]) -> None:
    """A request that this process sends late is still timed from when it was due, so no delay is left out."""
    origin = time.perf_counter()
    begun: list[asyncio.Future[None]] = []
    try:
        for prompt, seconds in zip(prompts, due, strict=True):
            await asyncio.sleep(origin + seconds - time.perf_counter())
            begun.append(asyncio.ensure_future(ask(prompt, origin + seconds)))
        await asyncio.gather(*begun)
    finally:
        for task in begun:
            task.cancel()
        await asyncio.gather(*begun, return_exceptions=True)
