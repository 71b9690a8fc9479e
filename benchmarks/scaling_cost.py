"""What a denoising forward costs, over context length, rows and batch, for every cache mode; exponents fitted.

    python -m benchmarks.scaling_cost

A random LLaDA (and a block-causal one of the same shape), one forward at a time: the segment that a request with such
a context contributes. Every cell is the median of some calls that take turns with the other sizes of its line. The
exponent is the slope of log seconds over log size: 1 is linear, 0 is free.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch

from benchmarks.measuring import (
    CLOCKS,
    add_machine_flags,
    alternate,
    exponent,
    machine,
    random_llada,
    random_model,
    seconds_of,
)
from psd_core.batch import Batch, build_batch
from psd_core.block import BlockState
from psd_core.config import CacheName, DecoderConfig
from psd_core.kvcache.modes import denoise_window
from psd_core.kvcache.store import KVStore
from psd_core.models.dtypes import resolve_dtype
from psd_core.models.layers import DiffusionDecoder
from psd_core.plan import Span, StepPlan
from psd_core.request import Request

BLOCK = 32


def make_batch(model: DiffusionDecoder, cache: CacheName, context: int, rows: int, batch: int) -> Batch:
    """A denoising forward of so many requests, each with `context` positions in all; the active block is the last."""
    block_length = BLOCK if cache == "causal" else None
    window = denoise_window(cache, context - BLOCK, context, context, is_shifted=False)
    width = window.stop - window.start
    spans = []
    slot = 0
    for _ in range(batch):
        spans.append(
            Span(
                request=Request("r", (1,), BLOCK, DecoderConfig(cache=cache)),
                phase="denoise",
                rows=tuple(BlockState.masked(BLOCK) for _ in range(rows)),
                token_ids=np.ones((rows, width), np.int64),
                window=window,
                block_start=context - BLOCK,
                slot_start=None if cache == "none" else slot,
                causal_block=block_length,
            )
        )
        slot += window.context_stop + rows * width
    return build_batch(StepPlan(tuple(spans)), False, model.dtype, model.device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_machine_flags(parser)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    spec = random_llada(given.hidden, given.layers, 8192)
    model = random_model(spec, resolve_dtype(given.dtype, spec, torch.device("cpu")))
    store = KVStore(spec.num_layers, 1 << 16, spec.num_kv_heads, spec.head_dim, model.dtype, model.device)
    where = machine(model, given.clock)
    print(
        f"Random LLaDA, {spec.num_parameters / 1e6:.0f} M parameters, block {BLOCK}, {where}, medians of "
        f"{given.rounds}: milliseconds per forward.\n"
    )

    def line(name: str, sizes: Sequence[int], make: Callable[[int], Batch]) -> None:
        @torch.inference_mode()
        def call(batch: Batch) -> None:
            model.project(model(batch, store)[batch.score_index])

        batches = {str(size): make(size) for size in sizes}
        for batch in batches.values():
            call(batch)
        timed = {
            size: partial(seconds_of, partial(call, batch), CLOCKS[given.clock]) for size, batch in batches.items()
        }
        medians = [statistics.median(found) for found in alternate(timed, given.rounds).values()]
        cells = " | ".join(f"{1e3 * seconds:.1f}" for seconds in medians)
        print(f"| {name} | {cells} | {exponent(sizes, medians):.2f} |", flush=True)

    def head(name: str, sizes: Sequence[int]) -> None:
        print(f"\n| {name} | " + " | ".join(map(str, sizes)) + " | exponent |\n|---|" + "---|" * (len(sizes) + 1))

    contexts, counts = (128, 256, 512, 1024, 2048), (1, 2, 4, 8)
    caches: tuple[CacheName, ...] = ("none", "dual", "causal")
    head("context; 1 row, 1 request", contexts)
    for cache in caches:
        line(f"`{cache}`", contexts, partial(make_batch, model, cache, rows=1, batch=1))
    head("rows; context 512, 1 request", counts)
    for cache in caches:
        line(f"`{cache}`", counts, partial(make_batch, model, cache, 512, batch=1))
    head("requests; context 512, 4 rows", counts)
    for cache in caches:
        line(f"`{cache}`", counts, partial(make_batch, model, cache, 512, 4))


if __name__ == "__main__":
    main()
