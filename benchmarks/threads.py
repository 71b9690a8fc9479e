"""A forward's time over threads and the way in which they wait for each other, and what `--threads` is chosen to be.

    python -m benchmarks.threads
    python -m benchmarks.threads --beside 1        one other program that keeps a core busy

OpenMP reads how threads wait when torch is imported, so every way has a process of its own; they take turns. A forward
has some rows of 32 tokens in a block with 160 tokens of cached context around it, as with `--cache dual`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import date
from typing import Final, TypedDict

import torch

from benchmarks.decoding import cpu_name
from benchmarks.measuring import random_llada, random_model
from psd_core.assets import demo_path
from psd_core.batch import Batch, Segment, make_biases
from psd_core.kvcache.store import KVStore
from psd_core.models.dtypes import resolve_dtype
from psd_core.models.layers import DiffusionDecoder
from psd_core.models.loader import load_model
from psd_core.models.threads import candidates, faster_threads
from server.cores import usable_cores

WIDTH, CONTEXT = 32, 192
WAYS: Final[Mapping[str, Mapping[str, str]]] = {
    "asleep": {"OMP_WAIT_POLICY": "PASSIVE"},  # what a worker is started with
    "a short loop, then asleep": {"GOMP_SPINCOUNT": "3000"},
    "in a loop": {"OMP_WAIT_POLICY": "ACTIVE"},
}
BUSY: Final = "while True: pass"


class Found(TypedDict):
    """What one process found of a model, as it comes in JSON."""

    chosen: int
    seconds: dict[str, list[float]]  # by threads, then by rows


def make_model(name: str, dtype: str) -> DiffusionDecoder:
    """The built-in model, or a random one of a width and four layers."""
    cpu = torch.device("cpu")
    if name == "built-in":
        return load_model(demo_path(), dtype=dtype)
    spec = random_llada(int(name), 4)
    return random_model(spec, resolve_dtype(dtype, spec, cpu))


@torch.inference_mode()
def measure(model: DiffusionDecoder, rows: int, rounds: int) -> float:
    """Median seconds of a forward."""
    local = model.local
    store = KVStore(local.num_layers, 2048, local.num_kv_heads, local.head_dim, model.dtype, model.device)
    segment = Segment(0, rows, WIDTH, CONTEXT // 2, 0, CONTEXT, None, None)
    tokens, positions = torch.arange(rows * WIDTH), torch.arange(CONTEXT // 2, CONTEXT // 2 + WIDTH).repeat(rows)
    biases = make_biases([segment], model.dtype, model.device)
    batch = Batch(tokens, positions, (segment,), biases, tokens)
    taken = []
    for index in range(3 + rounds):
        started = time.perf_counter()
        model(batch, store)[0, 0].item()
        if index >= 3:
            taken.append(time.perf_counter() - started)
    return statistics.median(taken)


def measure_here(models: Sequence[str], rows: Sequence[int], dtype: str, rounds: int) -> None:
    """Print as JSON: per model the threads that would be chosen, and seconds by threads and rows."""
    found: dict[str, Found] = {}
    for name in models:
        model = make_model(name, dtype)
        chosen = faster_threads(model.spec, model.dtype, usable_cores())
        seconds: dict[str, list[float]] = {}
        for threads in candidates(usable_cores()):
            torch.set_num_threads(threads)
            seconds[str(threads)] = [measure(model, number, rounds) for number in rows]
        found[name] = Found(chosen=chosen, seconds=seconds)
    print(json.dumps(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", default=["built-in", "512", "1024"], help="built-in, or widths")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--beside", type=int, default=0, help="other programs that keep a core busy each")
    parser.add_argument("--rounds", type=int, default=3, help="processes per way, in turns")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.here:
        measure_here(given.model, given.rows, given.dtype, 15)
        return
    command = [sys.executable, "-m", "benchmarks.threads", "--here", "--dtype", given.dtype, "--model", *given.model]
    command += ["--rows", *map(str, given.rows)]
    unset = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    results: dict[str, list[dict[str, Found]]] = {way: [] for way in WAYS}
    with ExitStack() as stack:
        for _ in range(given.beside):
            other = subprocess.Popen([sys.executable, "-c", BUSY], start_new_session=True)
            stack.callback(other.kill)
        for _ in range(given.rounds):
            for way, variables in WAYS.items():
                ended = subprocess.run(command, env={**unset, **variables}, stdout=subprocess.PIPE, check=True)
                results[way].append(json.loads(ended.stdout))
    where = f"{given.dtype}, {cpu_name()}, {date.today()}"
    print(f"Milliseconds of a forward, {given.beside} other programs, median of {given.rounds} processes; {where}.\n")
    columns = " | ".join(f"{rows} row{'s' * (rows > 1)}" for rows in given.rows)
    print(f"| model | threads wait | threads | {columns} | chosen |\n|---|---|---|" + "---|" * (len(given.rows) + 1))
    for name in given.model:
        for way, runs in results.items():
            chosen = ", ".join(str(run[name]["chosen"]) for run in runs)
            for threads in map(str, candidates(usable_cores())):
                cells = [
                    statistics.median(run[name]["seconds"][threads][index] for run in runs)
                    for index in range(len(given.rows))
                ]
                print(f"| {name} | {way} | {threads} | " + " | ".join(f"{1e3 * one:.1f}" for one in cells), end="")
                print(f" | {chosen} |", flush=True)


if __name__ == "__main__":
    main()
