"""Log-probabilities: of prompts, of alternatives, and of tokens under penalties and bias."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from psd_core.config import DecoderConfig, EngineConfig
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


@pytest.mark.parametrize("block_length", [None, 4])
@pytest.mark.parametrize("is_shifted", [False, True])
@pytest.mark.parametrize("budget", [8192, 60])
def test_a_prompt_is_scored_from_left_to_right(block_length: int | None, is_shifted: bool, budget: int) -> None:
    model = tiny_model(5, tiny_spec(is_shifted=is_shifted, block_length=block_length))
    decoder = DecoderConfig(block_length=block_length or 8, cache="none")
    driver = Driver(model, EngineConfig(max_num_batched_tokens=budget))
    request = Request("r", PROMPT, 0, decoder, score_prompt=True, num_top_logprobs=3)
    event = _score(driver, request)
    for position in range(1, len(PROMPT)):
        shown = [*PROMPT[:position], *[MASK_ID] * (len(PROMPT) - position)]
        logits, _ = plain_forward(model, shown, 0, None)
        expected = torch.log_softmax(logits[position - is_shifted], dim=-1)
        assert event.logprobs[position - 1] == pytest.approx(float(expected[PROMPT[position]]), abs=1e-4)
        expected[MASK_ID] = -torch.inf
        best = expected.topk(3)
        assert [token for token, _ in event.top[position - 1]] == best.indices.tolist()
        assert [value for _, value in event.top[position - 1]] == pytest.approx(best.values.tolist(), abs=1e-4)
    figures = driver.outcomes["r"].finished.figures  # type: ignore[union-attr]  # asserted by _score: it ended
    assert (figures.generated_tokens, figures.forwards) == (0, 0)
    assert figures.scoring_forwards == (1 if budget > 1000 else 3)


def test_scoring_changes_nothing_that_follows_it() -> None:
    model = tiny_model(6)
    request = Request("r", PROMPT, 12, stop_ids=frozenset({1}), sampling=SamplingParams(temperature=1.0, seed=4))
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
            assert top[0] == (token_id, pytest.approx(logprob))
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
