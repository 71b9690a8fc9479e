"""A long prompt of a causal model is computed piece by piece beside others, and nobody can tell from the tokens."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from psd_core.config import DecoderConfig, EngineConfig
from psd_core.models.layers import DiffusionDecoder
from psd_core.plan import next_window
from psd_core.request import Request
from psd_core.sequence import Sequence
from psd_core.shares import Share, portion_prompts
from psd_core.speculation.steptime import StepTimes, forward_work
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


def share_of(request: Request, num_cached: int = 0, *, is_open: bool = False) -> Share:
    """The first share of a block-causal sequence, denoising or with this much of its prompt computed."""
    sequence = Sequence(request, "block-causal", 0.0)
    sequence.num_cached = sequence.block_start if is_open else num_cached
    _, window = next_window(sequence, False)
    return Share(sequence, window, True, 0, 0)


def times_of(forward: float, row: float, token: float, pair: float) -> StepTimes:
    return StepTimes(prices=np.asarray([forward, row, token, pair]), num_observed=1000)


def piece(times: StepTimes, num_cached: int, least: int = 32, num_others: int = 3) -> Share:
    """What a forward beside `num_others` takes on of a prompt of 2,000 tokens."""
    decoder = replace(DECODER, block_length=8)
    others = [share_of(Request(str(index), (1,) * 40, 8, decoder), is_open=True) for index in range(num_others)]
    prompt = share_of(Request("long", (1,) * 2000, 8, decoder), num_cached)
    (share,) = [one for one in portion_prompts([*others, prompt], 4096, least, False, times) if one is prompt]
    return share


def test_a_piece_is_the_shorter_the_more_it_attends_to() -> None:
    times = times_of(0.001, 0.0001, 1e-5, 2e-7)
    works = np.asarray([forward_work([(1, 8, 40, True)] * 3), forward_work([(1, 32, 0, True)]) - [1, 0, 0, 0]])
    allowed = float(times.seconds(works).max())
    widths = []
    for num_cached in range(0, 1960, 40):
        share = piece(times, num_cached)
        assert share.is_partial
        assert share.width % 8 == 0
        cost = float(times.seconds(forward_work([(1, share.width, num_cached, True)]) - np.asarray([1, 0, 0, 0])))
        longer = forward_work([(1, share.width + 8, num_cached, True)]) - np.asarray([1, 0, 0, 0])
        assert cost <= allowed or share.width == 8
        assert float(times.seconds(longer)) > allowed or share.width == 32
        widths.append(share.width)
    assert widths == sorted(widths, reverse=True)
    assert (widths[0], widths[-1]) == (32, 8)


def test_where_a_token_costs_the_same_everywhere_pieces_are_bounded_in_tokens_alone() -> None:
    for num_cached in (0, 800, 1600):
        assert piece(times_of(0.01, 0.0, 1e-5, 0.0), num_cached).width == 32
        assert piece(times_of(0.01, 0.0, 1e-5, 0.0), num_cached, least=160).width == 160


def test_before_prices_are_known_pieces_are_bounded_in_tokens_alone() -> None:
    assert piece(StepTimes(), 1600).width == 32


def test_with_nobody_beside_it_a_prompt_is_computed_at_once() -> None:
    assert piece(times_of(0.001, 0.0001, 1e-5, 1e-3), 800, num_others=0).width == 1208  # with the block to answer


def test_whatever_prices_say_the_first_prompt_goes_on() -> None:
    assert piece(times_of(0.0, 0.0, 0.0, 0.0), 800).width == 32
    assert piece(times_of(0.0, 0.0, 0.0, 1.0), 1600).width == 8
