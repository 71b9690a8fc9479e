"""Engine steps against the bare forwards inside them: what planning, drafting, judging and packing cost on top.

    python -m benchmarks.step --batch 1 8 --depth 0 3

Engine and bare forward take turns, step by step: after each engine step the very batch that it computed is computed
again by a plain loop: model, head at the masked positions, maximum and logarithm of the sum. The ratio is of the sums
of one run; the table has the median over the runs. A shared or busy machine shifts both alike.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

import torch

from benchmarks.measuring import CLOCKS, Clock, add_machine_flags, load_task, machine, random_llada, random_model
from psd_core.assets import demo_path
from psd_core.batch import Batch
from psd_core.config import DecoderConfig, EngineConfig
from psd_core.engine import Engine
from psd_core.kvcache.store import KVStore
from psd_core.models.dtypes import resolve_dtype
from psd_core.models.layers import DiffusionDecoder
from psd_core.request import Request

WARM_UP_STEPS = 5


class Bare:
    """Runs an engine and, after every step, the step's own batch without it."""

    def __init__(self, model: DiffusionDecoder, max_num_seqs: int, clock: Clock) -> None:
        self._clock = clock
        self.engine = Engine(model, EngineConfig(max_num_seqs=max_num_seqs, max_num_batched_tokens=1 << 16))
        self._model = model
        self._given: tuple[Batch, KVStore] | None = None
        model.register_forward_pre_hook(self._note)

    def _note(self, _: torch.nn.Module, given: tuple[Batch, KVStore]) -> None:
        self._given = given

    @torch.inference_mode()
    def forward(self) -> float:
        """Seconds of the latest step's batch in a plain loop."""
        assert self._given is not None
        batch, store = self._given
        started = self._clock()
        hidden = self._model.forward(batch, store)
        logits = self._model.project(hidden[batch.score_index])
        (logits.max(dim=-1).values - logits.logsumexp(dim=-1)).numpy()
        return self._clock() - started

    def run(self, requests: list[Request]) -> tuple[float, float, int]:
        """(seconds of engine steps, of bare forwards, steps) until all requests are done, warm-up left out."""
        for request in requests:
            self.engine.add(request)
        stepped: list[float] = []
        bare: list[float] = []
        while self.engine.has_work():
            started = self._clock()
            report = self.engine.step().report
            seconds = self._clock() - started
            if report is not None:
                stepped.append(seconds)
                bare.append(self.forward())
        return sum(stepped[WARM_UP_STEPS:]), sum(bare[WARM_UP_STEPS:]), len(stepped)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_machine_flags(parser)
    parser.add_argument("--model", type=Path, default=demo_path())
    parser.add_argument("--random", action="store_true", help="a random LLaDA of 218 M parameters instead")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--depth", type=int, nargs="+", default=[0, 3])
    parser.add_argument("--cache", nargs="+", default=["none", "dual"])
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--runs", type=int, default=5)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    if given.random:
        spec = random_llada()
        model = random_model(spec, resolve_dtype(given.dtype, spec, torch.device("cpu")))
        prompts = [tuple(range(100 + index, 160 + 3 * index)) for index in range(max(given.batch))]
    else:
        task = load_task(given.model, given.dtype, max(given.batch))
        model, prompts = task.model, task.prompts
    name = "random LLaDA, 218 M parameters" if given.random else "built-in model"
    where = machine(model, given.clock)
    print(f"{name}, greedy, `exact`, max_tokens {given.max_tokens}, {where}, median of {given.runs} runs.\n")
    print("| batch | cache | D | engine step, ms | bare forward, ms | ratio (least–most) |\n|---|---|---|---|---|---|")
    for batch in given.batch:
        pair = Bare(model, batch, CLOCKS[given.clock])
        for cache in given.cache:
            for depth in given.depth:
                decoder = DecoderConfig(policy="greedy", draft_depth=depth, cache=cache)
                requests = [Request(str(index), prompts[index], given.max_tokens, decoder) for index in range(batch)]
                runs = [pair.run(requests) for _ in range(given.runs)]
                ratios = [engine / bare for engine, bare, _ in runs]
                steps = [count - WARM_UP_STEPS for *_, count in runs]
                print(
                    f"| {batch} | {cache} | {depth} "
                    f"| {1e3 * statistics.median(run[0] / n for run, n in zip(runs, steps, strict=True)):.2f} "
                    f"| {1e3 * statistics.median(run[1] / n for run, n in zip(runs, steps, strict=True)):.2f} "
                    f"| {statistics.median(ratios):.3f} ({min(ratios):.3f}–{max(ratios):.3f}) |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
