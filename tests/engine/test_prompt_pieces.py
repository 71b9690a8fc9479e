"""A long prompt of a causal model is computed piece by piece beside others, and nobody can tell from the tokens."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from psd_core.config import DecoderConfig, EngineConfig
from psd_core.models.layers import DiffusionDecoder
from psd_core.request import Request
from tests.engine.drive import Driver, assert_same, run_after, run_alone
from tests.engine.naive import naive_decode
from tests.engine.tiny import MASK_ID, tiny_model, tiny_spec

BLOCK = 4
ROOM = 12
DECODER = DecoderConfig(policy="topk", k=2, block_length=BLOCK, cache="causal", draft_depth=2)
SHORT = Request("short", (5, 9, 2), 60, DECODER)


def model_of(kind: str) -> DiffusionDecoder:
    is_shifted = kind in ("shifted", "context-causal")
    return tiny_model(3, tiny_spec(1, False, is_shifted, BLOCK, is_context_causal=kind == "context-causal"))


def long_prompt(length: int, seed: int = 0) -> tuple[int, ...]:
    chance = random.Random(seed)
    return tuple(chance.randrange(MASK_ID) for _ in range(length))


@pytest.mark.parametrize("length", [7, 40, 41, 70])
@pytest.mark.parametrize("kind", ["plain", "shifted", "context-causal"])
def test_a_prompt_in_pieces_is_answered_as_one_in_a_single_forward(kind: str, length: int) -> None:
    model = model_of(kind)
    driver = Driver(model, EngineConfig(max_num_batched_tokens=4096, max_refresh_tokens=ROOM))
    driver.add(SHORT)
    driver.step()
    request = Request("long", long_prompt(length), 14, DECODER)
    outcome, end = run_after(driver, request)
    alone, end_alone = run_alone(model, request)
    assert_same(outcome, alone)
    assert outcome.token_ids == alone.token_ids == naive_decode(model, request).token_ids
    assert_same(driver.outcomes["short"], run_alone(model, SHORT)[0])
    num_pieces = end.figures.forwards - end_alone.figures.forwards
    assert num_pieces == end.figures.refresh_forwards - end_alone.figures.refresh_forwards
    assert (num_pieces > 0) == (length > ROOM)


@pytest.mark.parametrize("kind", ["plain", "shifted", "context-causal"])
def test_no_forward_takes_on_more_of_prompts_than_it_may_while_others_are_answered(kind: str) -> None:
    driver = Driver(model_of(kind), EngineConfig(max_num_batched_tokens=4096, max_refresh_tokens=ROOM))
    driver.add(replace(SHORT, decoder=replace(DECODER, draft_depth=0)))
    driver.step()
    for index in range(3):
        driver.add(Request(f"r{index}", long_prompt(50, index), 1, replace(DECODER, draft_depth=0)))
    most = 0
    while any(driver.outcomes[f"r{index}"].finished is None for index in range(3)):
        report = driver.step().report
        assert report is not None
        most = max(most, report.tokens)
        assert driver.outcomes["short"].finished is None, "the one who must not wait was gone too early"
    # Each of four may compute a block and the one before it, the window of a shifted model begins a position early,
    # and one prompt's piece is a block even where less room is left.
    assert most <= ROOM + BLOCK + 4 * (2 * BLOCK + 1)


def test_prompts_are_not_cut_where_nobody_waits_for_them() -> None:
    driver = Driver(model_of("plain"), EngineConfig(max_num_batched_tokens=4096, max_refresh_tokens=ROOM))
    _, end = run_after(driver, Request("r", long_prompt(88), BLOCK, replace(DECODER, policy="greedy", draft_depth=0)))
    assert end.figures.forwards == BLOCK


@pytest.mark.parametrize("kind", ["plain", "shifted", "context-causal"])
def test_a_prompt_larger_than_a_forward_is_cut_even_alone(kind: str) -> None:
    """And then some forwards score nothing at all."""
    model = model_of(kind)
    driver = Driver(model, EngineConfig(max_num_batched_tokens=16))
    request = Request("r", long_prompt(70), 10, DECODER)
    driver.add(request)
    report = driver.step().report
    assert report is not None
    assert report.tokens <= 16
    driver.run()
    assert_same(driver.outcomes["r"], run_alone(model, request)[0])


def test_a_request_cancelled_between_two_pieces_leaves_what_was_computed() -> None:
    model = model_of("plain")
    driver = Driver(model, EngineConfig(max_num_batched_tokens=4096, max_refresh_tokens=ROOM))
    driver.add(SHORT)
    driver.step()
    request = Request("long", long_prompt(90), 10, DECODER)
    driver.add(request)
    for _ in range(3):
        driver.step()
    driver.engine.cancel("long")
    driver.step()
    outcome, end = run_after(driver, replace(request, request_id="again"))
    assert end.figures.reused_tokens == 3 * ROOM
    assert_same(outcome, run_alone(model, request)[0])


def test_prompts_are_answered_in_the_order_they_came() -> None:
    driver = Driver(model_of("plain"), EngineConfig(max_num_batched_tokens=4096, max_refresh_tokens=BLOCK))
    driver.add(SHORT)
    driver.step()
    ends: list[str] = []
    for index in range(6):
        driver.add(Request(f"r{index}", long_prompt(24, index), 1, DECODER))
    while len(ends) < 6:
        ends += [event.request_id for event in driver.step().finished if event.request_id != "short"]
        assert driver.forwards < 200
    assert ends == sorted(ends)
