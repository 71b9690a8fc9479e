"""Forwards that do not fit the memory: halved, tried again, counted; nobody's tokens change."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from psd_core.batch import Batch
from psd_core.config import DecoderConfig, EngineConfig
from psd_core.kvcache.store import KVStore
from psd_core.models.layers import DiffusionDecoder
from psd_core.request import Request
from tests.engine.drive import Driver, assert_same, mixed_requests, run_alone
from tests.engine.tiny import tiny_model

GREEDY = DecoderConfig(policy="greedy", block_length=8, draft_depth=0)


class TightDecoder(DiffusionDecoder):
    """The same model on a device with little memory: a forward of more than `capacity` tokens fails half-way.

    Half-way means that keys and values are written already.
    """

    capacity = 10**9
    fails: random.Random | None = None  # and others fail now and then

    def forward(self, batch: Batch, store: KVStore) -> Tensor:
        hidden = super().forward(batch, store)
        if hidden.shape[0] > self.capacity or (self.fails is not None and self.fails.random() < 0.2):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return hidden


def tight_model(seed: int, capacity: int, fails: random.Random | None = None) -> TightDecoder:
    model = tiny_model(seed)
    model.__class__ = TightDecoder
    assert isinstance(model, TightDecoder)
    model.capacity, model.fails = capacity, fails
    return model


def test_a_batch_that_does_not_fit_is_halved_until_it_does() -> None:
    driver = Driver(tight_model(0, capacity=50))
    for index in range(4):  # 11 tokens each and row: all four states fit, their drafts do not
        driver.add(Request(f"r{index}", (5, 6, index), 8, DecoderConfig(policy="greedy", block_length=8)))
    counts = []
    while driver.engine.has_work():
        counts.append(driver.step().out_of_memory)
    assert counts[0] == 0, "without drafts all four fit"
    assert sum(counts) > 0
    assert all(outcome.finished and outcome.finished.reason == "length" for outcome in driver.outcomes.values())


def test_drafts_are_shed_before_requests_are() -> None:
    driver = Driver(tight_model(0, capacity=50), EngineConfig(max_num_batched_tokens=400))
    for index in range(4):
        decoder = DecoderConfig(policy="greedy", block_length=8, draft_depth=6)
        driver.add(Request(f"r{index}", (5, 6, index), 8, decoder, watch=True))
    driver.step()
    output = driver.step()  # wants 4 x 7 rows of 11 tokens; what fits is 4 x 1
    assert output.out_of_memory > 0
    assert len(output.canvases) == 4


def test_a_request_that_does_not_even_fit_alone_ends_and_the_others_go_on() -> None:
    driver = Driver(tight_model(0, capacity=30))
    driver.add(Request("large", (5,) * 20, 16, GREEDY))
    driver.add(Request("small", (5, 6), 8, GREEDY))
    driver.run()
    large, small = driver.outcomes["large"].finished, driver.outcomes["small"].finished
    assert large is not None
    assert small is not None
    assert (large.reason, small.reason) == ("out_of_memory", "length")


def test_the_batch_grows_again_once_memory_is_back() -> None:
    model = tight_model(0, capacity=100)
    driver = Driver(model)
    for index in range(4):
        driver.add(Request(f"r{index}", (5, 6, index), 64, GREEDY, watch=True))
    driver.step()
    model.capacity = 10**9
    served = [len(driver.step().canvases) for _ in range(150)]
    assert served[0] < 4
    assert 4 in served


def test_other_errors_are_not_taken_for_want_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tight_model(0, capacity=30)
    driver = Driver(model)
    driver.add(Request("r", (5, 6), 8, GREEDY))
    monkeypatch.setattr(model, "forward", None)  # any further forward must fail
    with pytest.raises(TypeError):
        driver.step()


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_no_fault_and_no_neighbour_changes_a_requests_tokens(data: st.DataObject) -> None:
    """Mixed settings, sizes and cancels while forwards fail at random: every answer is its batch-of-one answer."""
    seed = data.draw(st.integers(0, 5))
    faults = random.Random(data.draw(st.integers(0, 1000)))
    driver = Driver(
        tight_model(seed, data.draw(st.sampled_from([120, 300])), faults),
        EngineConfig(max_num_batched_tokens=data.draw(st.sampled_from([100, 4096])), max_cache_tokens=4096),
    )
    added = [data.draw(mixed_requests(request_id=f"r{index}")) for index in range(data.draw(st.integers(2, 5)))]
    for request in added:
        driver.add(request)
        driver.step()
    if data.draw(st.booleans()):
        driver.engine.cancel(data.draw(st.sampled_from(added)).request_id)
    driver.run()
    model = tiny_model(seed)
    for request in added:
        outcome = driver.outcomes[request.request_id]
        alone, finished = run_alone(model, request)
        assert outcome.finished is not None
        assert_same(outcome, alone)
        if outcome.finished.reason not in ("cancelled", "out_of_memory"):
            assert (len(outcome.token_ids), outcome.finished.reason) == (len(alone.token_ids), finished.reason)
            assert len(outcome.prompt_logprobs) == len(alone.prompt_logprobs)


class CountingDecoder(DiffusionDecoder):
    """Counts the positions that are projected to the vocabulary."""

    projected: list[int]

    def project(self, hidden: Tensor) -> Tensor:
        self.projected.append(hidden.shape[0])
        return super().project(hidden)


def test_only_undecided_positions_are_projected_and_never_more_at_once_than_allowed() -> None:
    """However many requests share a forward, the logits' memory has a bound."""
    plain = tiny_model(2)
    model = CountingDecoder(plain.spec, torch.float32, torch.device("cpu"))
    model.load_state_dict(plain.state_dict())
    model.projected = []
    driver = Driver(model.eval(), EngineConfig(max_num_batched_tokens=4096, max_logit_rows=20))
    for index in range(9):
        driver.add(Request(f"r{index}", (3 + index, 4), 8, GREEDY))
    for undecided in range(8, 0, -1):
        model.projected.clear()
        driver.step()
        assert sum(model.projected) == 9 * undecided
        assert max(model.projected) <= 20
    assert not driver.engine.has_work()
