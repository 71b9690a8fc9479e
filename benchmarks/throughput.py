"""Tokens per second and latency over concurrency, for every fixed draft depth and "auto", in one process.

    python -m benchmarks.throughput --concurrency 1 2 4 8 16 32 64 --depth 0 1 2 3 5 7 auto

As many requests as the concurrency says are open at any time, until all problems are answered. The depths take turns
within a concurrency, so that a busy machine slows all alike; "auto" keeps its engine, and what it learned, throughout.
The last table is a load that changes: bursts of 1, 8, 32, 2, 16, 1 and 4 requests at once.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from benchmarks.measuring import CLOCKS, Clock, Task, add_machine_flags, alternate, load_task, machine
from psd_core.assets import demo_path
from psd_core.config import DecoderConfig, DraftDepth, EngineConfig
from psd_core.engine import Engine
from psd_core.request import Request

BURSTS = (1, 8, 32, 2, 16, 1, 4)


@dataclass(slots=True)
class Load:
    """Requests for one engine; the latest pass's tokens and latencies."""

    engine: Engine
    task: Task
    decoder: DecoderConfig
    max_tokens: int
    clock: Clock
    tokens: int = 0
    latencies: tuple[float, ...] = ()

    def run(self, prompts: Sequence[tuple[int, ...]], at_once: int) -> float:
        """Seconds until all are answered."""
        waiting = list(enumerate(prompts))[::-1]
        begun: dict[str, float] = {}
        ended: list[float] = []
        self.tokens = 0
        started = self.clock()
        while waiting or self.engine.has_work():
            while waiting and len(begun) < at_once:
                index, prompt = waiting.pop()
                begun[str(index)] = self.clock()
                self.engine.add(Request(str(index), prompt, self.max_tokens, self.decoder, stop_ids=self.task.stop_ids))
            for finished in self.engine.step().finished:
                self.tokens += finished.figures.generated_tokens
                ended.append(self.clock() - begun.pop(finished.request_id))
        self.latencies = tuple(ended)
        return self.clock() - started


def depth(text: str) -> DraftDepth:
    """A number or auto."""
    return "auto" if text == "auto" else int(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_machine_flags(parser)
    parser.add_argument("--model", type=Path, default=demo_path())
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64])
    parser.add_argument("--depth", type=depth, nargs="+", default=[0, 1, 2, 3, 5, 7, "auto"])
    parser.add_argument("--policy", default="threshold")
    parser.add_argument("--cache", default="none")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--problems", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    task = load_task(given.model, given.dtype, given.problems)
    clock, loads = CLOCKS[given.clock], {}
    for chosen in given.depth:
        decoder = DecoderConfig(policy=given.policy, draft_depth=chosen, cache=given.cache)
        config = EngineConfig(max_num_seqs=max(given.concurrency), max_num_batched_tokens=1 << 16)
        engine = Engine(task.model, config, clock=clock)
        loads[str(chosen)] = Load(engine, task, decoder, given.max_tokens, clock)
        loads[str(chosen)].run(task.prompts[:4], 2)
    where = machine(task.model, given.clock)
    print(
        f"Built-in model, {given.problems} held-out problems, {given.policy}, `exact`, cache `{given.cache}`, "
        f"max_tokens {given.max_tokens}, {where}; medians of {given.rounds} rounds: tokens / s (median "
        "latency, ms).\n"
    )
    print("| requests at once | " + " | ".join(f"D = {name}" for name in loads) + " | auto ÷ best fixed |")
    print("|---|" + "---|" * (len(loads) + 1))
    for at_once in given.concurrency:
        count = min(given.problems, max(16, at_once))
        run = partial(Load.run, prompts=task.prompts[:count], at_once=at_once)
        _print_row(str(at_once), loads, run, given.rounds)
    _print_row("changing", loads, lambda load: sum(load.run(task.prompts[:n], n) for n in BURSTS), given.rounds)


def _print_row(label: str, loads: dict[str, Load], run: Callable[[Load], float], rounds: int) -> None:
    tokens: dict[str, int] = {}
    latency: dict[str, float] = {}

    def timed(name: str) -> float:
        seconds = run(loads[name])
        tokens[name] = loads[name].tokens
        latency[name] = statistics.median(loads[name].latencies)
        return seconds

    found = alternate({name: partial(timed, name) for name in loads}, rounds)
    seconds = {name: statistics.median(times) for name, times in found.items()}
    cells = [f"{tokens[name] / seconds[name]:.0f} ({1e3 * latency[name]:.0f})" for name in loads]
    if label == "changing":  # tokens and latencies are of the last burst only
        cells = [f"{seconds[name]:.2f} s" for name in loads]
    fixed = [seconds[name] for name in loads if name != "auto"]
    ratio = f"{min(fixed) / seconds['auto']:.2f}" if "auto" in seconds and fixed else "–"
    print(f"| {label} | {' | '.join(cells)} | {ratio} |", flush=True)


if __name__ == "__main__":
    main()
