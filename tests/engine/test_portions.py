"""A long prompt of full attention is computed layer by layer beside others, and nobody can tell from the tokens."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from psd_core.batch import Batch
from psd_core.config import CacheName, DecoderConfig, EngineConfig
from psd_core.kvcache.store import KVStore
from psd_core.models.layers import DiffusionDecoder
from psd_core.request import Request
from tests.engine.drive import Driver, assert_same, decoders, requests, run_after, run_alone
from tests.engine.naive import naive_decode
from tests.engine.tiny import MASK_ID, tiny_model, tiny_spec

NUM_LAYERS = 5
ROOM = 12
CONFIG = EngineConfig(max_num_batched_tokens=4096, max_refresh_tokens=ROOM)
DECODER = DecoderConfig(policy="topk", k=2, block_length=4, cache="dual", draft_depth=2)
SHORT = Request("short", (5, 9, 2), 60, replace(DECODER, cache="none", canvas_blocks=0))


def model_of(is_shifted: bool = False) -> DiffusionDecoder:
    return tiny_model(3, replace(tiny_spec(1, False, is_shifted), num_layers=NUM_LAYERS))


def long_prompt(length: int, seed: int = 0) -> tuple[int, ...]:
    chance = random.Random(seed)
    return tuple(chance.randrange(MASK_ID) for _ in range(length))


@dataclass
class Passes:
    """What goes through a model: (query tokens, layers) of every call, and a fault to raise instead of one."""

    calls: list[tuple[int, range]] = field(default_factory=list)
    fault: Callable[[range], Exception | None] = lambda layers: None

    def watch(self, model: DiffusionDecoder, monkeypatch: pytest.MonkeyPatch) -> None:
        advance = model.advance

        def watched(batch: Batch, store: KVStore, layers: range, hidden: Tensor | None = None) -> Tensor:
            fault = self.fault(layers)
            if fault is not None:
                raise fault
            self.calls.append((batch.token_ids.shape[0], layers))
            return advance(batch, store, layers, hidden)

        monkeypatch.setattr(model, "advance", watched)

    @property
    def portions(self) -> list[tuple[int, range]]:
        return [(tokens, layers) for tokens, layers in self.calls if len(layers) < NUM_LAYERS]


@pytest.mark.parametrize("length", [7, 30, 90])
@pytest.mark.parametrize("is_shifted", [False, True])
@pytest.mark.parametrize("cache", ["prefix", "dual"])
def test_a_refresh_in_portions_decides_what_one_in_a_single_forward_does(
    cache: CacheName, is_shifted: bool, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, passes = model_of(is_shifted), Passes()
    request = Request("long", long_prompt(length), 14, replace(DECODER, cache=cache))
    alone, end_alone = run_alone(model, request)
    passes.watch(model, monkeypatch)
    driver = Driver(model, CONFIG)
    driver.add(SHORT)
    driver.step()
    outcome, end = run_after(driver, request)
    assert_same(outcome, alone)
    assert outcome.token_ids == alone.token_ids == naive_decode(model, request).token_ids
    assert_same(driver.outcomes["short"], run_alone(model, SHORT)[0])
    for name in ("forwards", "refresh_forwards", "rows", "drafted_tokens", "accepted_tokens"):
        assert getattr(end.figures, name) == getattr(end_alone.figures, name)
    assert end.figures.refresh_forwards == 4
    at_once = max(1, ROOM * NUM_LAYERS // (length + 16))
    assert [layers for _, layers in passes.portions[:2]] == [range(at_once), range(at_once, 2 * at_once)]


def test_no_forward_takes_on_more_of_refreshes_than_it_may_while_others_are_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, passes = model_of(), Passes()
    passes.watch(model, monkeypatch)
    driver = Driver(model, CONFIG)
    width = 3 + 64
    short = replace(SHORT.decoder, draft_depth=0, policy="greedy", block_length=64)
    driver.add(replace(SHORT, max_tokens=64, decoder=short))
    driver.step()
    names = [f"r{index}" for index in range(3)]
    for index, name in enumerate(names):
        driver.add(Request(name, long_prompt(150, index), 4, replace(DECODER, draft_depth=0)))
    while any(driver.outcomes[name].finished is None for name in names):
        passes.calls.clear()
        driver.step()
        assert driver.outcomes["short"].finished is None, "the one who must not wait was gone too early"
        (whole,) = [tokens for tokens, layers in passes.calls if len(layers) == NUM_LAYERS]
        assert whole <= width + 3 * DECODER.block_length, "a refresh was computed whole"
        assert sum(tokens * len(layers) for tokens, layers in passes.portions) <= NUM_LAYERS * whole


def test_a_refresh_is_whole_where_nobody_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    model, passes = model_of(), Passes()
    passes.watch(model, monkeypatch)
    driver = Driver(model, CONFIG)
    for index in range(2):
        driver.add(Request(f"r{index}", long_prompt(60, index), 4, replace(DECODER, policy="greedy", draft_depth=0)))
    driver.run()
    assert driver.forwards == 4
    assert not passes.portions


def test_first_refreshes_are_computed_in_the_order_they_came_and_later_ones_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, passes = model_of(), Passes()
    passes.watch(model, monkeypatch)
    driver = Driver(model, CONFIG)
    driver.add(SHORT)
    driver.step()
    asked = [Request(f"r{index}", long_prompt(90 - 30 * index, index), 8, DECODER) for index in range(3)]
    for request in asked:
        driver.add(request)
    driver.run()
    widths = [tokens for tokens, _ in passes.portions]
    assert list(dict.fromkeys(widths)) == [98, 68, 38]
    assert widths[:NUM_LAYERS] == [98] * NUM_LAYERS
    for width in (98, 68, 38):  # once each, of the two refreshes that every request takes
        passed = [index for tokens, layers in passes.portions if tokens == width for index in layers]
        assert passed == list(range(NUM_LAYERS))
    for request in asked:
        assert_same(driver.outcomes[request.request_id], run_alone(model, request)[0])


def test_what_has_begun_comes_to_its_end_when_the_others_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    model, passes = model_of(), Passes()
    passes.watch(model, monkeypatch)
    driver = Driver(model, CONFIG)
    driver.add(SHORT)
    driver.step()
    request = Request("long", long_prompt(90), 8, DECODER)
    driver.add(request)
    driver.step()
    assert [layers for _, layers in passes.portions] == [range(1)]
    driver.engine.cancel("short")
    driver.step()
    assert [layers for _, layers in passes.portions] == [range(1), range(1, NUM_LAYERS)]
    driver.run()
    assert_same(driver.outcomes["long"], run_alone(model, request)[0])


@pytest.mark.parametrize("same_id", [False, True])
def test_a_request_cancelled_between_two_portions_leaves_nothing_behind(same_id: bool) -> None:
    model = model_of()
    driver = Driver(model, CONFIG)
    driver.add(SHORT)
    driver.step()
    driver.add(Request("long", long_prompt(90), 10, DECODER))
    for _ in range(2):
        driver.step()
    driver.engine.cancel("long")
    driver.step()
    assert driver.outcomes["long"].token_ids == []
    other = Request("long" if same_id else "other", long_prompt(70, 1), 10, DECODER)
    assert_same(run_after(driver, other)[0], run_alone(model, other)[0])


@pytest.mark.parametrize("failing", [0, 2])
def test_a_portion_for_which_the_memory_does_not_suffice_costs_nobody_the_answer(
    failing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, passes = model_of(), Passes()
    request = Request("long", long_prompt(90), 10, DECODER)
    alone = run_alone(model, request)[0]

    def fault(layers: range) -> Exception | None:
        return torch.OutOfMemoryError("no room") if len(layers) < NUM_LAYERS and layers.start >= failing else None

    passes.fault = fault
    passes.watch(model, monkeypatch)
    driver = Driver(model, CONFIG)
    driver.add(SHORT)
    driver.step()
    driver.add(request)
    failures = 0
    while driver.engine.has_work():
        failures += driver.step().out_of_memory
    assert failures == 1
    assert_same(driver.outcomes["long"], alone)
    assert_same(driver.outcomes["short"], run_alone(model, SHORT)[0])


def test_time_until_the_first_portion_is_the_queues_and_the_rest_the_refreshs() -> None:
    """One second per reading of the clock, which an engine reads as a step begins and as it ends."""
    model = model_of()
    seconds = iter(range(10_000))
    driver = Driver(model, CONFIG)
    driver.engine._clock = lambda: float(next(seconds))
    driver.add(SHORT)
    driver.step()
    _, end = run_after(driver, Request("long", long_prompt(90), 4, DECODER))
    assert end.figures.queue_seconds == 1
    assert end.figures.refresh_seconds == NUM_LAYERS
    assert end.figures.refresh_forwards == 1


@given(st.data())
def test_any_mix_of_requests_gets_what_each_gets_alone(data: st.DataObject) -> None:
    model = tiny_model(data.draw(st.integers(0, 50)), replace(tiny_spec(), num_layers=3))
    config = EngineConfig(max_num_seqs=4, max_num_batched_tokens=64, max_refresh_tokens=data.draw(st.integers(1, 30)))
    driver = Driver(model, config)
    cached = decoders(caches=("none", "prefix", "dual"), has_auto_depth=True)
    added = []
    for index in range(data.draw(st.integers(2, 6))):
        request = data.draw(requests(request_id=f"r{index}", decoder=cached))
        longer = request.prompt_ids + long_prompt(data.draw(st.integers(0, 40)), index)
        added.append(replace(request, prompt_ids=longer))
        driver.add(added[-1])
        for _ in range(data.draw(st.integers(0, 3))):
            driver.step()
        if data.draw(st.integers(0, 5)) == 0:
            driver.engine.cancel(added[-1].request_id)
    driver.run()
    for request in added:
        outcome = driver.outcomes[request.request_id]
        assert outcome.finished is not None
        if outcome.finished.reason != "cancelled":
            alone, end = run_alone(model, request)
            assert_same(outcome, alone)
            # Drafts are shed where room is short, and a depth that is chosen depends on the time.
            if request.decoder.draft_depth == 0 and not request.decoder.num_guesses:
                assert outcome.finished.figures.forwards == end.figures.forwards
