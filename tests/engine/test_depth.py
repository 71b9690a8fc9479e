"""The depth controller: prices and chances it learns, what it makes of them, and what it must not change."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psd_core.block import BlockState, Candidates
from psd_core.config import FIXED_AUTO_DEPTH, AcceptanceName, DecoderConfig, DraftIncrement
from psd_core.depths import MAX_DECODERS
from psd_core.policies import Policy, Threshold, TopK
from psd_core.request import Request
from psd_core.speculation import draft, weakest_confidences
from psd_core.speculation.chances import Chances, Luck
from psd_core.speculation.depth import Offer, choose_depths
from psd_core.speculation.steptime import MIN_OBSERVED, ONE_FORWARD, StepTimes, Work, forward_work, span_work
from tests.engine.drive import Driver, run_alone
from tests.engine.tiny import tiny_model


def forward(rows: int, width: int = 32, num_context: int = 200) -> Work:
    return np.asarray(ONE_FORWARD) + span_work(np.asarray(rows), width, num_context, True)


@pytest.mark.parametrize("prices", [(3e-3, 0.0, 2e-5, 0.0), (2e-3, 1e-4, 0.0, 1e-8), (1e-2, 0.0, 0.0, 0.0)])
def test_prices_are_learned_from_noisy_forwards_and_followed_when_they_change(prices: tuple[float, ...]) -> None:
    noise = np.random.default_rng(0)
    times = StepTimes()
    for factor in (1.0, 3.0):
        for index in range(800):
            work = forward(rows=1 + index % 8, num_context=100 + 10 * (index % 7))
            seconds = factor * float(work @ np.asarray(prices)) * noise.uniform(0.9, 1.1)
            if index % 50 == 0:
                seconds *= 20  # something else had the machine
            times = times.observe(work, seconds)
        for rows in (1, 4, 8, 16):
            expected = factor * float(forward(rows) @ np.asarray(prices))
            assert float(times.seconds(forward(rows))) == pytest.approx(expected, rel=0.15)
        assert (times.prices >= 0).all()


def test_the_work_of_a_forward_is_the_sum_of_its_spans() -> None:
    spans = [(1, 200, 0, False), (4, 32, 300, True), (8, 5, 0, False), (3, 7, 9, True)]
    plain = np.asarray(ONE_FORWARD) + sum(
        span_work(np.asarray(rows), width, num_context, is_cached) for rows, width, num_context, is_cached in spans
    )
    assert forward_work(spans).tolist() == plain.tolist()


def test_a_forward_without_a_duration_teaches_nothing() -> None:
    times = StepTimes().observe(forward(1), 0.0)
    assert (times.num_observed, times.is_ready) == (0, False)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_the_chosen_depths_are_the_best_of_all(data: st.DataObject) -> None:
    number = st.floats(0, 2)
    offers = []
    for _ in range(data.draw(st.integers(1, 3))):
        size = data.draw(st.integers(0, 3))
        steps = np.cumsum([0.0, *data.draw(st.lists(number, min_size=size, max_size=size))])
        seconds = np.cumsum([0.0, *data.draw(st.lists(number, min_size=size, max_size=size))])
        offers.append(Offer(steps, seconds))
    base_steps, base_seconds = float(len(offers)), data.draw(st.floats(0.1, 3))

    def rate(depths: tuple[int, ...]) -> float:
        gained = sum(float(offer.steps[depth]) for offer, depth in zip(offers, depths, strict=True))
        cost = sum(float(offer.seconds[depth]) for offer, depth in zip(offers, depths, strict=True))
        return (base_steps + gained) / (base_seconds + cost)

    best = max(rate(depths) for depths in product(*(range(offer.steps.size) for offer in offers)))
    assert rate(tuple(choose_depths(base_steps, base_seconds, offers))) == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize("price", [0.01, 0.013, 0.0137, 0.02, 1 / 3])
@pytest.mark.parametrize("others", range(6))
def test_choices_of_the_same_worth_come_to_an_end(price: float, others: int) -> None:
    # Certain drafts at the price of a row, in a forward that costs no more than its rows: all depths are as good.
    for depth in range(1, 8):
        rows = np.arange(depth + 1.0)
        offers = [Offer(rows, price * (rows + 1) - price)] * 2
        base_steps, base_seconds = 2.0 + others, price * (2 + others)
        for chosen in choose_depths(base_steps, base_seconds, offers):
            assert 0 <= chosen <= depth


def test_where_nothing_has_a_price_the_choice_still_ends() -> None:
    steps = np.asarray([0.0, 0.5, 0.6])
    assert choose_depths(4.0, 0.0, [Offer(steps, np.zeros(3))] * 4) == [2] * 4


def test_chances_go_from_the_guess_to_what_was_seen() -> None:
    chances = Chances()
    sure, unsure = np.asarray([0.95, 0.9], np.float32), np.asarray([0.4, 0.35], np.float32)
    first = chances.estimate(sure)
    assert first[0] > first[1] > 0
    for _ in range(300):
        chances = chances.observe(sure, (0, 1, 2)).observe(unsure, (0,))
    assert (chances.estimate(sure) > 0.95).all()
    assert (chances.estimate(unsure) < 0.05).all()
    assert chances.estimate(np.zeros(0, np.float32)).size == 0


def test_a_request_is_like_the_others_until_it_shows_otherwise() -> None:
    assert Luck().factor == 1
    lucky, unlucky = Luck(), Luck()
    for _ in range(20):
        lucky, unlucky = lucky.observe(1, 0.4), unlucky.observe(0, 0.4)
    assert lucky.factor > 1.5
    assert unlucky.factor < 0.5


@settings(max_examples=100, deadline=None)
@given(
    tokens=st.lists(st.floats(0.01, 0.99), min_size=1, max_size=8),
    depth=st.integers(1, 7),
    increment=st.sampled_from([1, 2, 3, "policy", "subsets"]),
    policy=st.sampled_from([Threshold(0.6), TopK(2)]),
    may_complete=st.booleans(),
)
def test_weakest_confidences_are_those_of_the_drafts_themselves(
    tokens: list[float], depth: int, increment: DraftIncrement, policy: Policy, may_complete: bool
) -> None:
    stale = Candidates(np.arange(len(tokens)), np.log(np.asarray(tokens, np.float32)))
    state = BlockState.masked(len(tokens))
    state = state.fill(policy.select(state, stale), stale)
    drafts = draft(state, stale, policy, depth, increment)
    wanted = [row for row in drafts if may_complete or not row.is_complete]
    plain = [stale.confidence[row.filled_since(state)].min() for row in wanted]
    fast = weakest_confidences(state, stale, policy, depth, increment, may_complete)
    assert fast.tolist() == plain


GREEDY = DecoderConfig(policy="greedy", block_length=16, draft_depth="auto", cache="dual")


@pytest.mark.parametrize("rule", ["subset", "token"])
def test_auto_is_one_fixed_depth_where_tokens_would_depend_on_it(rule: AcceptanceName) -> None:
    auto = replace(GREEDY, acceptance=rule)
    outcomes = []
    for decoder in (auto, replace(auto, draft_depth=FIXED_AUTO_DEPTH)):
        outcome, finished = run_alone(tiny_model(1), Request("r", (3, 7, 9), 24, decoder))
        outcomes.append((outcome.token_ids, finished.figures.rows, finished.figures.accepted_depths))
    assert outcomes[0] == outcomes[1]


def test_many_decoders_do_not_fill_the_memory() -> None:
    driver = Driver(tiny_model(1))
    for index in range(MAX_DECODERS + 3):
        decoder = replace(GREEDY, threshold=index / 1000)
        driver.add(Request(f"r{index}", (3, 7, 9), 4, decoder))
    driver.run()
    assert len(driver.engine._scheduler._depths._chances) == MAX_DECODERS


def test_a_prompt_is_scored_before_depths_are_chosen() -> None:
    """Beside others, and after prices are known: rows that score are no drafts."""
    driver = Driver(tiny_model(1))
    driver.add(Request("before", (5, 7, 9), 64, GREEDY))
    for _ in range(MIN_OBSERVED + 1):
        driver.step()
    driver.add(Request("scored", tuple(range(1, 13)), 8, GREEDY, score_prompt=True))
    driver.run()
    assert len(driver.outcomes["scored"].token_ids) == 8
