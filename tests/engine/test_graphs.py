"""Padded and recorded forwards equal the plain ones. What stands in for CUDA graphs repeats tensor operations only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from psd_core.batch import Segment, build_batch, hidden_keys
from psd_core.config import DecoderConfig, EngineConfig
from psd_core.errors import ConfigError
from psd_core.graphs import Compute, EagerRecorder, Graphs, Replay, cuda_recorder
from psd_core.kvcache.store import KVStore
from psd_core.models.layers import DiffusionDecoder
from psd_core.models.loader import load_model
from psd_core.models.padded_attention import padded_bias, unpack
from psd_core.padded import MAX_TOKENS, pack, shape_of
from psd_core.plan import StepPlan
from psd_core.request import Request, SamplingParams
from tests.engine.drive import Driver, assert_all_as_alone, assert_same, mixed_requests, run_alone
from tests.engine.spans import SHAPES, Shape, plan_of
from tests.engine.tiny import tiny_model, tiny_spec

GOLDEN = Path(__file__).parents[1] / "data" / "golden"


class CountingRecorder:
    """Counts. Computes again, or traces the operations of the first call and repeats those, on the same memory.

    Of the Python around them nothing is repeated then. As with a CUDA graph, whatever Python decided or computed from a
    batch would be that of the first one for ever.
    """

    def __init__(self, *, traces: bool) -> None:
        self._traces = traces
        self.num_recorded = self.num_replays = 0

    def record(self, compute: Compute, numbers: Tensor) -> Replay:
        self.num_recorded += 1
        traced: Callable[[Tensor], Tensor] = make_fx(compute)(numbers) if self._traces else compute

        def replay() -> Tensor:
            self.num_replays += 1
            return traced(numbers)

        return replay


class FullRecorder(EagerRecorder):
    """A device with memory for so many graphs."""

    def __init__(self, room: int) -> None:
        self._room = room

    def record(self, compute: Compute, numbers: Tensor) -> Replay:
        if self._room:
            self._room -= 1
            return super().record(compute, numbers)
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


def random_store(num_slots: int, num_kv_heads: int = 2) -> KVStore:
    store = KVStore(2, num_slots, num_kv_heads, 16, torch.float32, torch.device("cpu"))
    generator = torch.Generator().manual_seed(1)
    for arena in (*store.keys, *store.values):
        arena.normal_(generator=generator)
    return store


@pytest.mark.parametrize("shapes", SHAPES)
def test_the_padded_bias_hides_what_its_plain_twin_says(shapes: list[Shape]) -> None:
    plan, _ = plan_of(shapes)
    shape = shape_of(plan)
    assert shape is not None
    numbers = np.full(shape.num_numbers, -7, np.int64)
    pack(plan, shape, False, numbers)
    padded = unpack(torch.from_numpy(numbers), shape)
    bias = padded_bias(padded, shape, torch.float32)
    group = 0
    for rows, width, start, context_stop, cached, *causality in shapes:
        apart, stop = (rows, context_stop) if cached else (1, 0)
        segment = Segment(0, rows, width, start, 5 if cached else None, context_stop, *causality)
        hidden = torch.from_numpy(hidden_keys(segment))
        expected = torch.ones(apart * width, bias.shape[-1], dtype=torch.bool)
        expected[:, :stop] = hidden[:, :stop]
        expected[:, shape.num_context : shape.num_context + apart * width] = hidden[:, stop:]
        for _ in range(1 if cached else rows):
            assert torch.equal(bias[group, : apart * width] == -torch.inf, expected)
            group += 1
    assert (bias == 0).any(dim=-1).all(), "a query that sees nothing is NaN"


def assert_as_plain(graphs: Graphs, plan: StepPlan, model: DiffusionDecoder, store: KVStore) -> None:
    """The recorded forward of `plan` has the plain one's hidden states where they are scored, and no NaN elsewhere."""
    batch = build_batch(plan, False, torch.float32, torch.device("cpu"))
    expected = model(batch, store)[batch.score_index]
    recorded = graphs.run(plan)
    assert recorded is not None
    hidden, scored = recorded
    torch.testing.assert_close(hidden[scored], expected, atol=1e-4, rtol=1e-4)
    assert hidden.isfinite().all()


@pytest.mark.parametrize("num_kv_heads", [1, 2])
@pytest.mark.parametrize("shapes", SHAPES)
def test_a_recorded_forward_equals_the_plain_one(shapes: list[Shape], num_kv_heads: int) -> None:
    plan, num_slots = plan_of(shapes)
    model, store = tiny_model(0, tiny_spec(num_kv_heads)), random_store(num_slots, num_kv_heads)
    graphs = Graphs(model, store, EagerRecorder())
    with torch.inference_mode():
        assert_as_plain(graphs, plan, model, store)


def test_a_recorded_forward_in_bfloat16_keeps_its_shape_where_plain_ones_are_padded() -> None:
    plan, num_slots = plan_of([(1, 4, 8, 20, True, None, None)])
    model = DiffusionDecoder(tiny_spec(2), torch.bfloat16, torch.device("cpu"))
    model.load_state_dict(tiny_model(0).state_dict())
    assert model.pads_rows
    store = KVStore(2, num_slots, 2, 16, torch.bfloat16, torch.device("cpu"))
    with torch.inference_mode():
        recorded = Graphs(model.eval(), store, EagerRecorder()).run(plan)
        batch = build_batch(plan, False, torch.bfloat16, torch.device("cpu"))
        expected = model(batch, store)[batch.score_index]
    assert recorded is not None
    hidden, scored = recorded
    torch.testing.assert_close(hidden[scored], expected, atol=5e-2, rtol=5e-2)


def test_a_recording_is_repeated_for_other_batches_of_its_shape() -> None:
    """Other tokens, positions, slots, rows and masks; the cache has other contents, too."""
    batches: list[list[Shape]] = [
        [(3, 4, 8, 20, True, None, None), (1, 4, 4, 9, True, None, None)],
        [(1, 12, 8, 17, True, None, None), (2, 5, 9, 24, True, None, None)],
        [(2, 6, 3, 23, True, 4, None), (3, 4, 16, 16, True, None, 12)],
    ]
    model, store, recorder = tiny_model(3), random_store(150), CountingRecorder(traces=True)
    graphs = Graphs(model, store, recorder)
    with torch.inference_mode():
        for shapes in batches:
            plan, _ = plan_of(shapes)
            for arena in (*store.keys, *store.values):
                arena.add_(0.1)
            assert_as_plain(graphs, plan, model, store)
    assert (recorder.num_recorded, recorder.num_replays) == (2, 4), "one of each was the trial at the start"


@pytest.mark.parametrize("cache", ["none", "prefix", "dual", "causal", "context-causal", "shifted dual"])
def test_answers_are_the_same_with_recorded_forwards(cache: str) -> None:
    block_length = 8 if "causal" in cache else None
    spec = tiny_spec(1, False, cache == "shifted dual", block_length, cache == "context-causal")
    model, recorder = tiny_model(2, spec), CountingRecorder(traces=cache == "dual")
    mode = {"context-causal": "causal", "shifted dual": "dual"}.get(cache, cache)
    decoder = DecoderConfig(policy="greedy", block_length=8, cache=mode)  # type: ignore[arg-type]  # one of CacheName
    requests = [
        Request("a", (3, 4, 5), 16, decoder),
        Request("b", tuple(range(2, 13)), 9, replace(decoder, draft_depth=1)),
        Request("c", (9, 8), 8, replace(decoder, draft_depth=0), sampling=SamplingParams(temperature=1.0, seed=3)),
    ]
    driver = Driver(model, recorder=recorder)
    assert_all_as_alone(driver, model, requests)
    assert 1 < recorder.num_recorded < recorder.num_replays


@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_whatever_is_asked_recorded_forwards_change_no_answer(data: st.DataObject) -> None:
    model = tiny_model(data.draw(st.integers(0, 5)))
    driver = Driver(model, recorder=EagerRecorder())
    added = [data.draw(mixed_requests(request_id=f"r{index}")) for index in range(data.draw(st.integers(1, 4)))]
    for request in added:
        driver.add(request)
    driver.run()
    for request in added:
        assert_same(driver.outcomes[request.request_id], run_alone(model, request)[0])


def test_forwards_that_would_not_gain_are_launched_plainly() -> None:
    plan, _ = plan_of([(2, 12, 0, 0, False, None, None)])
    assert shape_of(plan) is not None
    refresh = StepPlan((*plan.spans, replace(plan.spans[0], phase="refresh")))
    assert shape_of(refresh) is None
    large, _ = plan_of([(2, MAX_TOKENS // 2 + 8, 0, 0, False, None, None)])
    assert shape_of(large) is None
    long, _ = plan_of([(1, 8, 8, 2**16, True, None, None)])
    assert shape_of(long) is None
    uneven, _ = plan_of([(1, 200, 0, 0, False, None, None), *[(1, 8, 0, 0, False, None, None)] * 7])
    assert shape_of(uneven) is None, "seven in eight tokens would be padding"


@settings(max_examples=60, deadline=None)
@given(rows=st.integers(1, 8), width=st.integers(1, 64), context=st.integers(0, 700), others=st.integers(0, 3))
def test_shapes_hold_what_they_are_for_and_are_few(rows: int, width: int, context: int, others: int) -> None:
    plan, _ = plan_of([(rows, width, 0, context, True, None, None), *[(1, width, 0, 0, False, None, None)] * others])
    shape = shape_of(plan)
    if shape is None:
        return
    assert shape.num_groups >= 1 + others
    assert rows * width <= shape.num_queries <= max(32, 1.25 * rows * width)
    assert context <= shape.num_context <= max(32, 1.25 * context)
    assert shape.num_queries % 8 == shape.num_context % 8 == 0


def test_a_device_without_memory_for_graphs_goes_on_without() -> None:
    model = tiny_model(1)
    request = Request("r", (3, 4, 5), 24, DecoderConfig(policy="greedy", block_length=8))
    driver = Driver(model, EngineConfig(), recorder=FullRecorder(1))
    driver.add(request)
    steps = [driver.step() for _ in range(2)]
    driver.run()
    assert [step.out_of_memory for step in steps] == [0, 0], "the budget is not to blame"
    assert_same(driver.outcomes["r"], run_alone(model, request)[0])


def test_what_cannot_be_recorded_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="no memory is left"):
        Graphs(tiny_model(0), random_store(8), FullRecorder(0))
    with pytest.raises(ConfigError, match="--cuda-graphs needs a CUDA device; the model is on cpu"):
        cuda_recorder(tiny_model(0))
    experts = load_model(GOLDEN / "lladamoe" / "ckpt", dtype="float32", device="cpu")
    with pytest.raises(ConfigError, match="--cuda-graphs needs a model without experts, got LLaDAMoE"):
        Graphs(experts, random_store(0), EagerRecorder())
