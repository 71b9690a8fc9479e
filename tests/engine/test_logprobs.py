"""Log-probabilities: of prompts, of alternatives, and of tokens under penalties and bias."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from psd_core.config import CacheName, DecoderConfig, EngineConfig
from psd_core.errors import RequestError
from psd_core.events import PromptEvent
from psd_core.request import Request, SamplingParams
from tests.engine.drive import Driver, run_alone
from tests.engine.tiny import MASK_ID, plain_forward, tiny_model, tiny_spec

PROMPT = (3, 9, 3, MASK_ID, 17, 40, 5)


def _score(driver: Driver, request: Request) -> PromptEvent:
    driver.add(request)
    events: list[PromptEvent] = []
    while driver.engine.has_work():
        events += driver.step().prompts
    (event,) = events
    return event


LONG_PROMPT = (*PROMPT, 8, 30, 2, 11, 45, 6)


@pytest.mark.parametrize(("block_length", "cache"), [(None, "none"), (None, "dual"), (4, "none"), (4, "causal")])
@pytest.mark.parametrize("is_shifted", [False, True])
@pytest.mark.parametrize("budget", [8192, 60])
@pytest.mark.parametrize("num_prompt", [7, 12, 13])
def test_a_prompt_is_scored_from_left_to_right(
    block_length: int | None, cache: CacheName, is_shifted: bool, budget: int, num_prompt: int
) -> None:
    model = tiny_model(5, tiny_spec(is_shifted=is_shifted, block_length=block_length))
    decoder = DecoderConfig(block_length=block_length or 8, cache=cache)
    prompt = LONG_PROMPT[:num_prompt]
    driver = Driver(model, EngineConfig(max_num_batched_tokens=budget))
    request = Request("r", prompt, 0, decoder, score_prompt=True, num_top_logprobs=3)
    event = _score(driver, request)
    for position in range(1, len(prompt)):
        shown = [*prompt[:position], *[MASK_ID] * (len(prompt) - position)]
        logits, _ = plain_forward(model, shown, 0, None)
        expected = torch.log_softmax(logits[position - is_shifted], dim=-1)
        assert event.logprobs[position - 1] == pytest.approx(float(expected[prompt[position]]), abs=1e-4)
        expected[MASK_ID] = -torch.inf
        best = expected.topk(3)
        assert [token for token, _ in event.top[position - 1]] == best.indices.tolist()
        assert [value for _, value in event.top[position - 1]] == pytest.approx(best.values.tolist(), abs=1e-4)
    finished = driver.outcomes["r"].finished
    assert finished is not None
    figures = finished.figures
    assert (figures.generated_tokens, figures.forwards) == (0, 0)
    assert figures.scoring_forwards >= (1 if block_length is None else -(-num_prompt // block_length))
    if budget > 1000 and cache != "causal":
        assert figures.scoring_forwards == (1 if block_length is None else -(-num_prompt // block_length))


@pytest.mark.parametrize("canvas_blocks", [0, 1])
def test_canvas_blocks_bounds_the_masks_behind_a_scored_token(canvas_blocks: int) -> None:
    model = tiny_model(5)
    decoder = DecoderConfig(block_length=4, canvas_blocks=canvas_blocks)
    event = _score(Driver(model), Request("r", LONG_PROMPT, 0, decoder, score_prompt=True))
    for position in range(1, len(LONG_PROMPT)):
        stop = min(len(LONG_PROMPT), (position // 4 + 1 + canvas_blocks) * 4)
        shown = [*LONG_PROMPT[:position], *[MASK_ID] * (stop - position)]
        expected = torch.log_softmax(plain_forward(model, shown, 0, None)[0][position], dim=-1)
        assert event.logprobs[position - 1] == pytest.approx(float(expected[LONG_PROMPT[position]]), abs=1e-4)


def test_a_block_causal_model_with_its_cache_computes_blocks_and_not_prompts() -> None:
    model = tiny_model(5, tiny_spec(block_length=4))
    tokens = {}
    for cache in ("none", "causal"):
        driver = Driver(model)
        decoder = DecoderConfig(block_length=4, cache=cache)
        driver.add(Request("r", LONG_PROMPT * 8, 0, decoder, score_prompt=True))
        tokens[cache] = 0
        while driver.engine.has_work():
            report = driver.step().report
            tokens[cache] += 0 if report is None else report.tokens
    num_prompt = len(LONG_PROMPT) * 8
    assert tokens["none"] > num_prompt * num_prompt / 2
    assert tokens["causal"] <= num_prompt * (4 + 4)  # a row per token, and one in front of each span


@pytest.mark.parametrize("is_shifted", [False, True])
@pytest.mark.parametrize("num_prompt", [7, 8, 12])
@pytest.mark.parametrize(("block_length", "cache"), [(None, "none"), (None, "prefix"), (4, "none"), (4, "causal")])
def test_scoring_changes_nothing_that_follows_it(
    is_shifted: bool, num_prompt: int, block_length: int | None, cache: CacheName
) -> None:
    model = tiny_model(6, tiny_spec(is_shifted=is_shifted, block_length=block_length))
    decoder = DecoderConfig(block_length=block_length or 8, cache=cache)
    sampling = SamplingParams(temperature=1.0, seed=4)
    request = Request("r", LONG_PROMPT[:num_prompt], 12, decoder, sampling, stop_ids=frozenset({1}))
    plain, plain_end = run_alone(model, request)
    scored, scored_end = run_alone(model, replace(request, score_prompt=True, num_top_logprobs=2))
    assert scored.token_ids == plain.token_ids
    assert scored_end.figures.forwards == plain_end.figures.forwards


def test_one_token_needs_no_scoring_and_no_tokens_need_no_forward() -> None:
    driver = Driver(tiny_model(1))
    driver.add(Request("a", (3,), 0, score_prompt=True))
    driver.add(Request("b", PROMPT, 0))
    driver.run()
    assert driver.forwards == 0
    assert all(outcome.finished and outcome.finished.reason == "length" for outcome in driver.outcomes.values())


def test_the_taken_token_leads_the_alternatives_without_sampling() -> None:
    driver = Driver(tiny_model(2))
    driver.add(Request("r", PROMPT, 10, num_top_logprobs=4))
    driver.add(Request("other", PROMPT, 10))  # shares forwards and asks for nothing
    events = []
    while driver.engine.has_work():
        events += driver.step().tokens
    for event in events:
        if event.request_id == "other":
            assert event.top == ()
            continue
        for token_id, logprob, top in zip(event.token_ids, event.logprobs, event.top, strict=True):
            best_id, best_logprob = top[0]
            assert best_id == token_id
            assert best_logprob == pytest.approx(logprob)
            assert len(top) == 4
            assert [value for _, value in top] == sorted((value for _, value in top), reverse=True)
            assert all(other != MASK_ID for other, _ in top)


def test_bias_forces_and_forbids() -> None:
    model = tiny_model(3)
    free, _ = run_alone(model, Request("r", PROMPT, 8))
    forced, _ = run_alone(model, Request("r", PROMPT, 8, sampling=SamplingParams(logit_bias=((7, 100.0),))))
    assert forced.token_ids == [7] * 8
    banned = tuple((token, -100.0) for token in sorted(set(free.token_ids)))
    without, _ = run_alone(model, Request("r", PROMPT, 8, sampling=SamplingParams(logit_bias=banned)))
    assert not set(without.token_ids) & set(free.token_ids)


def test_a_presence_penalty_keeps_tokens_from_coming_back() -> None:
    """With one position per step every token sees all others."""
    decoder = DecoderConfig(policy="greedy", draft_depth=3, block_length=8)
    biased = SamplingParams(logit_bias=((7, 5.0), (8, 4.5), (9, 4.0)))
    for seed in range(3):
        model = tiny_model(seed)
        free, _ = run_alone(model, Request("r", PROMPT, 16, decoder, biased))
        held, _ = run_alone(model, Request("r", PROMPT, 16, decoder, replace(biased, presence_penalty=2.0)))
        assert len(set(held.token_ids)) >= len(set(free.token_ids))
        assert held.token_ids != free.token_ids


def test_a_suffix_is_seen_and_the_hole_has_its_exact_length() -> None:
    model = tiny_model(4)
    decoder = DecoderConfig(block_length=8, canvas_blocks=0)
    plain, _ = run_alone(model, Request("r", PROMPT, 11, decoder))
    outcomes = [run_alone(model, Request("r", PROMPT, 11, decoder, suffix_ids=ids)) for ids in ((5, 6, 7), (30, 31))]
    texts = [outcome.token_ids for outcome, _ in outcomes]
    assert [len(text) for text in texts] == [11, 11]
    assert len({tuple(text) for text in (*texts, plain.token_ids)}) == 3
    assert all(finished.figures.discarded_tokens == 0 for _, finished in outcomes)


def test_a_suffix_is_refused_where_nothing_looks_to_the_right() -> None:
    driver = Driver(tiny_model(1, tiny_spec(block_length=4)))
    with pytest.raises(RequestError, match="suffix needs a model"):
        driver.engine.add(Request("r", PROMPT, 4, DecoderConfig(block_length=4, cache="none"), suffix_ids=(5,)))


def test_scored_prompts_together_take_no_more_room_beside_others_than_one() -> None:
    model = tiny_model(3)
    config = EngineConfig(max_num_batched_tokens=2048)
    driver = Driver(model, config)
    decoder = DecoderConfig("greedy", draft_depth=0)
    scored = [Request(f"s{index}", (3, 9, 17, 40) * 8, 0, decoder, score_prompt=True) for index in range(5)]
    writer = Request("w", PROMPT, 64, decoder, min_tokens=64)
    width = len(PROMPT) + 64
    for request in (writer, *scored):
        driver.add(request)
    while driver.outcomes["w"].finished is None:
        report = driver.step().report
        assert report is not None
        assert report.tokens <= 2 * width
    # Alone at last, they fill a quarter of a forward with rows of 32 tokens, and more of them can be served in one.
    report = driver.step().report
    assert report is not None
    assert report.rows == 2048 // 4 // 32
    driver.run()
    for request in scored:
        assert driver.outcomes[request.request_id].prompt_logprobs == pytest.approx(
            run_alone(model, request)[0].prompt_logprobs, abs=1e-4
        )


def test_prompts_are_scored_in_turn() -> None:
    driver = Driver(tiny_model(3), EngineConfig(max_num_batched_tokens=128))  # room for one row of 32 tokens
    requests = [Request(f"s{index}", (3, 9, 17, 40) * 8, 0, score_prompt=True) for index in range(3)]
    for request in requests:
        driver.add(request)
    ended = {end.request_id: driver.forwards for _ in range(93) for end in driver.step().finished}
    assert ended == {"s0": 91, "s1": 92, "s2": 93}
    assert not driver.engine.has_work()
