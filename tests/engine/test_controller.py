"""The depth controller in a closed loop without a model: time is what a formula says, whatever the machine does."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from psd_core.block import BlockState, Candidates
from psd_core.config import DecoderConfig, EngineConfig
from psd_core.decide import decide
from psd_core.models.spec import ModelSpec
from psd_core.plan import Span
from psd_core.request import Request
from psd_core.scheduler import Scheduler

SPEC = ModelSpec("LLaDAModelLM", 48, 32, 2, 2, 2, 16, 48, 1e4, 1e-5, 256, False, False, mask_id=47, eos_ids=(1,))
BLOCK = 32


def oracle(span: Span, row: BlockState) -> Candidates:
    """What a model might say: tokens are sure where their neighbours are decided; fixed per request and position."""
    chance = np.random.default_rng([int(span.request.request_id), span.block_start])
    mood = chance.normal(0.0, 1.5, BLOCK)
    decided = np.concatenate([[True], row.decided, [False]])
    score = mood + 1.6 * decided[:-2] + 1.2 * decided[2:]
    settled = chance.integers(0, 40, BLOCK)
    tokens = np.where(score > -0.5, settled, (settled + 1) % 40)
    return Candidates(tokens, -np.log1p(np.exp(-score)).astype(np.float32))


@dataclass
class Ran:
    """What a load took."""

    tokens: dict[str, tuple[int, ...]]
    seconds: float = 0.0
    forwards: int = 0
    rows: int = 0


def run_load(decoder: DecoderConfig, at_once: int, price: tuple[float, float]) -> Ran:
    """A scheduler, its controller and no model: forwards take what `price` says, per forward and per row.

    The first requests are there to be learned from, and do not count.
    """
    scheduler = Scheduler(EngineConfig(max_num_seqs=at_once, max_num_batched_tokens=1 << 16), 0, SPEC)
    noise = np.random.default_rng(0)
    now = 0.0
    for indices in (range(8), range(8, 20)):
        for index in indices:
            scheduler.add(Request(str(index), (1, 2, 3), BLOCK, decoder), now)
        ran, began = Ran({}), now
        while scheduler.has_work():
            plan = scheduler.plan(1 << 16)
            rows = sum(span.token_ids.shape[0] for span in plan.spans)
            scored = [
                [oracle(span, row) if index < span.token_ids.shape[0] else None for index, row in enumerate(span.rows)]
                for span in plan.spans
            ]
            started = now
            now += (price[0] + price[1] * rows) * float(noise.uniform(0.9, 1.1))
            ran.forwards += 1
            ran.rows += rows
            for event in scheduler.apply(decide(plan.spans, scored), started, now).tokens:
                ran.tokens[event.request_id] = event.token_ids
        ran.seconds = now - began
    return ran


AUTO = DecoderConfig(block_length=BLOCK, draft_depth="auto")


@pytest.mark.parametrize("at_once", [1, 4])
def test_auto_is_as_good_as_the_best_fixed_depth(at_once: int) -> None:
    """Whatever a row costs; and no token depends on it. Forwards and rows of a fixed depth do not depend on prices."""
    runs = {depth: run_load(replace(AUTO, draft_depth=depth), at_once, (0.0, 0.0)) for depth in (0, 1, 2, 3, 7)}
    for per_forward, per_row in [(1.0, 0.0), (1.0, 0.15), (0.2, 1.0)]:
        auto = run_load(AUTO, at_once, (per_forward, per_row))
        best = min(per_forward * ran.forwards + per_row * ran.rows for ran in runs.values())
        assert all(auto.tokens == ran.tokens for ran in runs.values())
        assert auto.seconds <= 1.08 * best, (per_row, auto.rows / auto.forwards)
