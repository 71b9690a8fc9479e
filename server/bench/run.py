"""Runs the levels of a benchmark, one after the other, and keeps what is measured if it is interrupted."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from server.bench.figures import LevelFigures, figures_of
from server.bench.load import ClosedLoop, Load, OpenLoop, offer
from server.bench.prompts import Prompt, chosen_prompts, random_prompts
from server.bench.target import Ask, Sample, Target, first_model, make_client

LAG_PROBE_SECONDS: Final = 0.02
WARM_CLIENTS: Final = 16  # at most, however many the level has


@dataclass(frozen=True, slots=True)
class BenchSettings:
    """What `psd bench` was asked to do."""

    url: str
    key: str | None
    model: str | None  # None takes the first one that the server lists
    ask: Ask  # its model is replaced by the one found
    loads: tuple[Load, ...]
    num_requests: int  # per level
    num_warm: int  # per level, not measured
    prompts: tuple[Prompt, ...]  # none: random words
    num_words: int
    seed: int
    max_connections: int
    output: Path  # without an ending


@dataclass(frozen=True, slots=True)
class Level:
    """One measured level: its figures and the samples they were made of."""

    figures: LevelFigures
    samples: tuple[Sample, ...]


@dataclass(frozen=True, slots=True)
class BenchResult:
    """What a run came to."""

    settings: BenchSettings
    model: str
    usage_options: tuple[str, ...]
    levels: tuple[Level, ...]
    is_interrupted: bool


Progress = Callable[[Load, int], None]  # level, answers or errors so far


async def run_bench(settings: BenchSettings, progress: Progress) -> BenchResult:
    """Measure every level. UnreachableError if the server cannot be measured at all; Ctrl-C ends the run early."""
    async with make_client(settings.url, settings.key, settings.max_connections) as client:
        model = settings.model or await first_model(client)
        target = Target(client, replace(settings.ask, model=model))
        num_each = settings.num_warm + settings.num_requests
        drawn = _draw(settings, 1 + num_each * len(settings.loads))
        await target.probe(drawn[-1])
        levels: list[Level] = []
        with _interruptible() as stop:
            for index, load in enumerate(settings.loads):
                prompts = drawn[index * num_each : (index + 1) * num_each]
                warm, measured = prompts[: settings.num_warm], prompts[settings.num_warm :]
                await _warm_up(target, load, warm, stop)
                if stop.is_set():
                    break
                level = await _measure(target, load, measured, settings.seed + index, stop, progress)
                levels.append(level)
        return BenchResult(settings, model, tuple(target.usage_options), tuple(levels), stop.is_set())


def _draw(settings: BenchSettings, count: int) -> list[Prompt]:
    """Prompts for all levels: no level, and no warm-up, asks what another one has asked while there are others."""
    if settings.prompts:
        return chosen_prompts(settings.prompts, count, settings.seed)
    return random_prompts(count, settings.num_words, settings.seed)


async def _warm_up(target: Target, load: Load, prompts: Sequence[Prompt], stop: asyncio.Event) -> None:
    clients = load.concurrency if isinstance(load, ClosedLoop) else WARM_CLIENTS

    async def ask(prompt: Prompt, due: float) -> None:
        await target.ask(prompt, due, due)

    await offer(ClosedLoop(min(clients, WARM_CLIENTS)), prompts, ask, 0, stop)


async def _measure(
    target: Target, load: Load, prompts: Sequence[Prompt], seed: int, stop: asyncio.Event, progress: Progress
) -> Level:
    samples: list[Sample] = []
    num_begun = 0
    origin = time.perf_counter()

    async def ask(prompt: Prompt, due: float) -> None:
        nonlocal num_begun
        num_begun += 1
        samples.append(await target.ask(prompt, due, origin))
        progress(load, len(samples))

    progress(load, 0)
    async with _lags() as lags:
        await offer(load, prompts, ask, seed, stop)
    return Level(figures_of(load, samples, num_begun, lags, is_interrupted=stop.is_set()), tuple(samples))


@asynccontextmanager
async def _lags() -> AsyncIterator[list[float]]:
    """How late a timer of this process fires, again and again: what it adds to every measurement at worst."""
    lags: list[float] = []

    async def watch() -> None:
        while True:
            due = time.perf_counter() + LAG_PROBE_SECONDS
            await asyncio.sleep(LAG_PROBE_SECONDS)
            lags.append(time.perf_counter() - due)

    watching = asyncio.create_task(watch())
    try:
        yield lags
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


@contextlib.contextmanager
def _interruptible() -> Iterator[asyncio.Event]:
    """An event that the first Ctrl-C sets; a second one raises as usual."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def interrupt() -> None:
        loop.remove_signal_handler(signal.SIGINT)
        stop.set()

    loop.add_signal_handler(signal.SIGINT, interrupt)
    try:
        yield stop
    finally:
        loop.remove_signal_handler(signal.SIGINT)


def total_requests(settings: BenchSettings) -> int:
    """Measured requests of all levels."""
    return settings.num_requests * len(settings.loads)


def describe(load: Load) -> dict[str, object]:
    """For a program."""
    match load:
        case ClosedLoop(concurrency):
            return {"loop": "closed", "concurrency": concurrency}
        case OpenLoop(rate):
            return {"loop": "open", "requests_per_second": rate}
