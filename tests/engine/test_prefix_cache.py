"""Requests of a block-causal model that begin alike share what was computed, and nobody can tell from the tokens."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from psd_core.config import DecoderConfig, EngineConfig
from psd_core.kvcache.prefixes import PrefixCache
from psd_core.request import Request, SamplingParams
from tests.engine.drive import Driver, begin_alike, churn, make_stems, run_after, run_alone
from tests.engine.tiny import tiny_model, tiny_spec

DECODER = DecoderConfig(block_length=4, cache="causal", draft_depth=2)
PROMPT = (5, 9, 2, 30, 41, 7, 7, 12, 3, 21)  # two whole blocks and a half


@pytest.mark.parametrize("is_shifted", [False, True])
def test_a_second_request_reuses_whole_blocks_of_the_first(is_shifted: bool) -> None:
    model = tiny_model(3, tiny_spec(is_shifted=is_shifted, block_length=4))
    driver = Driver(model)
    first, first_end = run_after(driver, Request("a", PROMPT, 12, DECODER))
    again, again_end = run_after(driver, Request("b", PROMPT, 12, DECODER))
    assert first_end.figures.reused_tokens == 0
    assert again_end.figures.reused_tokens == 8
    assert again.token_ids == first.token_ids
    assert again_end.figures.forwards == first_end.figures.forwards


def test_a_longer_conversation_reuses_the_answer_too() -> None:
    model = tiny_model(4, tiny_spec(block_length=4))
    driver = Driver(model)
    first, _ = run_after(driver, Request("a", PROMPT, 14, DECODER))
    longer = Request("b", (*PROMPT, *first.token_ids, 8, 8, 8), 10, DECODER)
    outcome, end = run_after(driver, longer)
    assert end.figures.reused_tokens == 20  # the last block of the first answer was never computed complete
    assert outcome.token_ids == run_alone(model, longer)[0].token_ids


@pytest.mark.parametrize("num_blocks", [2, 3])
@pytest.mark.parametrize("is_shifted", [False, True])
def test_a_prompt_that_ends_with_a_block_reuses_what_its_model_allows(num_blocks: int, is_shifted: bool) -> None:
    model = tiny_model(5, tiny_spec(is_shifted=is_shifted, block_length=4))
    driver = Driver(model)
    request = Request("a", tuple(range(4 * num_blocks)), 8, DECODER)
    first, _ = run_after(driver, request)
    again, end = run_after(driver, replace(request, request_id="b"))
    assert end.figures.reused_tokens == 4 * (num_blocks - is_shifted)
    assert again.token_ids == first.token_ids


@pytest.mark.parametrize("seed", range(3))
def test_any_mix_equals_the_batch_of_one_under_any_pressure(seed: int) -> None:
    """Few prefixes, little room: contexts are kept, reused, dropped, and cancelled on the way."""
    rng = random.Random(seed)
    stems = make_stems(rng, 3)
    added: list[Request] = []
    for index in range(30):
        prompt = begin_alike(rng, stems, (0, 5))
        sampling = SamplingParams(temperature=rng.choice((0.0, 1.0)), seed=index)
        added.append(Request(f"r{index}", prompt, rng.randint(1, 14), DECODER, sampling))
    assert churn(tiny_model(seed, tiny_spec(is_shifted=seed == 1, block_length=4)), added, rng) > 20


def test_requests_of_different_salts_share_nothing() -> None:
    driver = Driver(tiny_model(3, tiny_spec(block_length=4)))
    reused = []
    for number, salt in enumerate(["", "a", "b", "a", ""]):
        request = Request(f"r{number}", PROMPT, 4, DECODER, cache_salt=salt)
        reused.append(run_after(driver, request)[1].figures.reused_tokens > 0)
    assert reused == [False, False, False, True, True]


def test_it_can_be_switched_off() -> None:
    driver = Driver(tiny_model(3, tiny_spec(block_length=4)), EngineConfig(prefix_cache=False))
    for name in "ab":
        _, end = run_after(driver, Request(name, PROMPT, 12, DECODER))
        assert end.figures.reused_tokens == 0


def test_the_least_recently_used_context_goes_first_and_shared_beginnings_live_on() -> None:
    cache = PrefixCache(2)
    left, right = np.asarray([1, 2, 3, 4]), np.asarray([1, 2, 9, 9])
    assert cache.keep(0, left)
    assert cache.keep(10, right)
    assert not cache.keep(20, right), "kept already"
    assert cache.num_slots == 8
    assert cache.find(np.asarray([1, 2, 3, 4, 5]), 5) == (0, 4)
    assert cache.drop_oldest() == 10
    assert cache.find(right, 4) == (0, 2)
    assert cache.drop_oldest() == 0
    assert cache.find(left, 4) == (0, 0)
    assert cache.drop_oldest() is None
    assert cache.num_slots == 0
