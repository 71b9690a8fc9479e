"""Fast paths beside their plain twins on whatever device is there, over a table of batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from psd_core.batch import build_batch
from psd_core.block import BlockState
from psd_core.config import DecoderConfig
from psd_core.graphs import Graphs, Recorder
from psd_core.kvcache.modes import Window
from psd_core.kvcache.store import KVStore
from psd_core.models.attention import attend, attend_plain
from psd_core.models.layers import DiffusionDecoder
from psd_core.models.parameters import SCALE_SUFFIX
from psd_core.models.quantized import plain_product, product
from psd_core.plan import Span, StepPlan
from psd_core.request import Request

# Largest difference ÷ largest value that a twin may have: sums in another order, in the type's precision.
TOLERANCES: Final = {torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}
REQUEST: Final = Request("r", (1,), 8, DecoderConfig())
#      rows, width, window start, context stop, cached
Part = tuple[int, int, int, int, bool]
BATCHES: Final[dict[str, tuple[Part, ...]]] = {
    "dual, D = 0": ((1, 32, 64, 160, True),),
    "dual, D = 3": ((4, 32, 64, 160, True),),
    "prefix, D = 3": ((4, 64, 96, 96, True),),
    "causal, shifted": ((4, 33, 63, 64, True),),
    "none, D = 3": ((4, 96, 0, 0, False),),
    "several": ((4, 32, 64, 160, True), (2, 32, 0, 160, True), (1, 32, 96, 96, True), (3, 32, 32, 224, True)),
}


@dataclass(frozen=True, slots=True)
class Check:
    """One comparison. Differences are relative to the largest value of the plain twin."""

    name: str
    difference: float
    tolerance: float
    same_tokens: float | None = None  # share of positions whose best token is the same

    @property
    def holds(self) -> bool:
        """Never of NaN."""
        return self.difference <= self.tolerance


def check_attention(device: torch.device, dtype: torch.dtype) -> Iterator[Check]:
    """The fast attention beside the plain one, 8 heads of 64 over 4 key-value heads."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device, dtype)

    for name, parts in BATCHES.items():
        plan, num_slots = make_plan(parts, 8)
        batch = build_batch(plan, False, dtype, device)
        num_tokens = batch.token_ids.shape[0]
        query, key, value = random(num_tokens, 8, 64), random(num_tokens, 4, 64), random(num_tokens, 4, 64)
        keys, values = random(num_slots, 4, 64), random(num_slots, 4, 64)
        fast = attend(query, key, value, batch, keys, values)
        wide_query, wide_key, wide_value, *arena = (part.float().cpu() for part in (query, key, value, keys, values))
        on_host = build_batch(plan, False, torch.float32, torch.device("cpu"))
        # Many tiny operations, which a GPU would wait for.
        plain = attend_plain(wide_query, wide_key, wide_value, on_host, arena[0], arena[1])
        yield compare(f"attention, {name}", plain, fast.cpu(), dtype)


@torch.inference_mode()
def check_graphs(model: DiffusionDecoder, recorder: Callable[[], Recorder]) -> Iterator[Check]:
    """Recorded forwards beside plain ones; each recording is used twice, with other tokens."""
    for name, parts in BATCHES.items():
        _, num_slots = make_plan(parts, model.spec.vocab_size)
        store = random_store(model, num_slots)
        graphs = Graphs(model, store, recorder())
        for seed in range(2):
            plan, _ = make_plan(parts, model.spec.vocab_size, seed)
            batch = build_batch(plan, False, model.dtype, model.device)
            plain = model(batch, store)[batch.score_index]
            recorded = graphs.run(plan)
            if recorded is None:
                raise AssertionError(f"no graph for {name}")
            hidden, scored = recorded
            yield _compare_logits(f"graph, {name}, use {1 + seed}", model, plain, hidden[scored])


@torch.inference_mode()
def check_forwards(label: str, plain: DiffusionDecoder, change: Callable[[], DiffusionDecoder]) -> Iterator[Check]:
    """What a changed model computes beside what the plain one did; `change` may change the very model."""
    stores, expected = {}, {}
    for name, parts in BATCHES.items():
        plan, num_slots = make_plan(parts, plain.spec.vocab_size)
        stores[name] = random_store(plain, num_slots)
        batch = build_batch(plan, False, plain.dtype, plain.device)
        expected[name] = batch, plain(batch, stores[name])[batch.score_index]
    changed = change()
    for name, (batch, hidden) in expected.items():
        found = changed(batch, stores[name])[batch.score_index]
        yield _compare_logits(f"{label}, {name}", plain, hidden, found)


@torch.inference_mode()
def check_products(model: DiffusionDecoder) -> Iterator[Check]:
    """Products with a layer's 8-bit matrices beside those with the matrices that they stand for."""
    generator = torch.Generator().manual_seed(0)
    parameters = dict(model.layers[0].named_parameters())
    for name, weight in parameters.items():
        scale = parameters.get(name + SCALE_SUFFIX)
        if scale is not None and weight.ndim == 2:
            hidden = torch.randn(128, weight.shape[1], generator=generator).to(model.device, model.dtype)
            plain = plain_product(hidden, weight, scale)
            yield compare(f"8-bit {name}", plain, product(hidden, weight, scale), model.dtype)


def compare(name: str, plain: Tensor, fast: Tensor, dtype: torch.dtype) -> Check:
    """[…] with […]."""
    difference = (fast.float() - plain.float()).abs().max() / plain.float().abs().max()
    return Check(name, float(difference), TOLERANCES[dtype])


def _compare_logits(name: str, model: DiffusionDecoder, plain: Tensor, fast: Tensor) -> Check:
    """Final hidden states, [M, d] each, and the tokens that the head makes of them."""
    check = compare(name, plain, fast, model.dtype)
    same = model.project(plain).argmax(dim=-1) == model.project(fast).argmax(dim=-1)
    return Check(check.name, check.difference, check.tolerance, float(same.float().mean()))


def random_store(model: DiffusionDecoder, num_slots: int) -> KVStore:
    """An arena with something in it."""
    local = model.local
    store = KVStore(local.num_layers, num_slots, local.num_kv_heads, local.head_dim, model.dtype, model.device)
    for arena in (*store.keys, *store.values):
        arena.normal_()
    return store


def make_plan(parts: tuple[Part, ...], vocab_size: int, seed: int = 0) -> tuple[StepPlan, int]:
    """(denoising spans with random tokens, the cache slots that they reach)."""
    random = np.random.default_rng(seed)
    spans, slot = [], 7
    for rows, width, start, context_stop, is_cached in parts:
        states = tuple(BlockState.masked(32) for _ in range(rows))
        ids = random.integers(0, vocab_size, (rows, width))
        first = slot if is_cached else None
        spans.append(
            Span(REQUEST, "denoise", states, ids, Window(start, start + width, context_stop), start, first, None)
        )
        slot += context_stop + rows * width if is_cached else 0
    return StepPlan(tuple(spans)), slot
