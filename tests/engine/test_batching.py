"""Continuous batching: whoever shares a forward changes nobody else's tokens."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from psd_core.config import DecoderConfig, EngineConfig
from psd_core.request import Request
from tests.engine.drive import Driver, assert_same, mixed_requests, requests, run_alone
from tests.engine.tiny import tiny_model


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_churn_gives_every_request_its_batch_of_one_tokens(data: st.DataObject) -> None:
    """Random joins and cancels, mixed settings, tight budgets and caches: same tokens, one end each, no slot lost."""
    model = tiny_model(data.draw(st.integers(0, 5)))
    config = EngineConfig(
        max_num_seqs=data.draw(st.integers(1, 6)),
        max_num_batched_tokens=data.draw(st.sampled_from([1, 40, 100, 4096])),
        max_cache_tokens=data.draw(st.sampled_from([230, 300, 4096])),
        max_logit_rows=data.draw(st.sampled_from([1, 7, 1024])),
    )
    driver = Driver(model, config)
    added: list[Request] = []
    cancelled: set[str] = set()
    for index in range(data.draw(st.integers(2, 8))):
        request = data.draw(mixed_requests(request_id=f"r{index}"))
        added.append(request)
        driver.add(request)
        for _ in range(data.draw(st.integers(0, 3))):
            driver.step()
        if data.draw(st.integers(0, 5)) == 0:
            victim = data.draw(st.sampled_from(added)).request_id
            if driver.outcomes[victim].finished is None:
                cancelled.add(victim)
            driver.engine.cancel(victim)
    driver.run()

    for request in added:
        outcome = driver.outcomes[request.request_id]
        alone, finished = run_alone(model, request)
        assert outcome.finished is not None
        assert_same(outcome, alone)
        if request.request_id in cancelled:
            assert outcome.finished.reason == "cancelled"
        else:
            assert len(outcome.token_ids) == len(alone.token_ids)
            assert len(outcome.prompt_logprobs) == len(alone.prompt_logprobs)
            assert outcome.finished.reason == finished.reason
    assert not driver.engine.has_work(), "an idle engine must not be stepped"
    occupancy = driver.step().occupancy
    assert (occupancy.running, occupancy.waiting, occupancy.cache_ratio) == (0, 0, 0.0)


def test_two_requests_of_eight_steps_staggered_by_two_share_forwards() -> None:
    decoder = DecoderConfig(policy="greedy", block_length=8, draft_depth=0)
    driver = Driver(tiny_model(0))
    driver.add(Request("first", (5, 6, 7), 8, decoder))
    driver.step()
    driver.step()
    driver.add(Request("second", (8, 9), 8, decoder))
    driver.run()
    assert driver.forwards == 10


def test_a_prompt_is_refreshed_in_the_same_forward_as_others_denoise() -> None:
    decoder = DecoderConfig(policy="greedy", block_length=8, draft_depth=2, cache="dual")
    driver = Driver(tiny_model(0))
    driver.add(Request("first", (5, 6, 7), 16, decoder))
    driver.step()
    driver.add(Request("second", (8, 9), 16, decoder))
    report = driver.step().report
    assert report is not None
    assert report.phase == "mixed"


def test_a_cancelled_request_leaves_at_the_next_forward() -> None:
    decoder = DecoderConfig(policy="greedy", block_length=8, draft_depth=0)
    driver = Driver(tiny_model(0))
    driver.add(Request("first", (5, 6, 7), 64, decoder))
    driver.step()
    driver.engine.cancel("first")
    output = driver.step()
    assert output.report is None
    assert [event.reason for event in output.finished] == ["cancelled"]
    assert not driver.engine.has_work()


@settings(max_examples=30, deadline=None)
@given(st.lists(requests(), min_size=2, max_size=6), st.sampled_from([1, 30, 60]))
def test_no_running_sequence_waits_longer_than_there_are_running_sequences(drawn: list[Request], budget: int) -> None:
    config = EngineConfig(max_num_batched_tokens=budget, max_cache_tokens=4096)
    driver = Driver(tiny_model(0), config)
    for index, request in enumerate(drawn):
        driver.add(replace(request, request_id=f"r{index}", watch=True))
    silent = dict.fromkeys(driver.outcomes, 0)
    while driver.engine.has_work():
        output = driver.step()
        served = {event.request_id for event in output.canvases}
        for request_id, outcome in driver.outcomes.items():
            if outcome.finished is None:
                silent[request_id] = 0 if request_id in served else silent[request_id] + 1
                assert silent[request_id] < len(drawn)


def test_shedding_drafts_keeps_the_tokens_of_every_rule() -> None:
    """Only `exact` may run with fewer drafts than asked for; the other rules' tokens depend on them."""
    model = tiny_model(2)
    for rule in ("exact", "subset", "token"):
        decoder = DecoderConfig(policy="topk", k=2, block_length=8, draft_depth=5, acceptance=rule)
        drawn = [Request(f"r{i}", (i + 1, 7), 24, decoder) for i in range(4)]
        crowded = Driver(model, EngineConfig(max_num_batched_tokens=50))
        for request in drawn:
            crowded.add(request)
        crowded.run()
        for request in drawn:
            assert crowded.outcomes[request.request_id].token_ids == run_alone(model, request)[0].token_ids
