"""Context-causal models: finished tokens see what stands before them, the open block sees itself whole.

Blocks begin behind the prompt, each with its first token alone. The naive decoder is the judge.
"""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from psd_core.block import BlockState, Candidates
from psd_core.config import POLICY_NAMES, CacheName, DecoderConfig, EngineConfig, PolicyName
from psd_core.errors import ContextError, RequestError
from psd_core.kvcache.modes import CAUSAL_CACHES
from psd_core.models.layers import DiffusionDecoder
from psd_core.policies import Greedy, OpensAlone
from psd_core.request import Request, SamplingParams
from tests.engine.drive import Driver, begin_alike, churn, decoders, make_stems, requests, run_after, run_alone
from tests.engine.naive import naive_decode
from tests.engine.tiny import plain_forward, tiny_model, tiny_spec

BLOCK = 4
PROMPT = (5, 9, 2, 30, 41, 7, 7, 12, 3, 21)
DECODER = DecoderConfig(block_length=BLOCK, cache="causal", draft_depth=2)
PI = tuple(name for name in POLICY_NAMES if name != "lopa")


def model_of(seed: int, block_length: int = BLOCK) -> DiffusionDecoder:
    spec = tiny_spec(1 + seed % 2, is_shifted=True, block_length=block_length, is_context_causal=True)
    return tiny_model(seed, spec)


@pytest.mark.parametrize("policy", PI)
def test_exact_equals_the_naive_policy_with_no_more_forwards(policy: PolicyName) -> None:
    drawn = decoders(policies=(policy,), caches=CAUSAL_CACHES, acceptances=("exact",), block_length=BLOCK)

    @settings(max_examples=12, deadline=None)
    @given(request=requests(decoder=drawn), depth=st.integers(1, 7), seed=st.integers(0, 40))
    def check(request: Request, depth: int, seed: int) -> None:
        request = replace(request, suffix_ids=())
        model = model_of(seed)
        expected = naive_decode(model, request)
        for draft_depth in (0, depth):
            decoder = replace(request.decoder, draft_depth=draft_depth)
            outcome, finished = run_alone(model, replace(request, decoder=decoder))
            assert outcome.token_ids == expected.token_ids
            assert finished.reason == expected.reason
            assert outcome.logprobs == pytest.approx(expected.logprobs, abs=1e-4)
            assert (finished.figures.forwards == expected.forwards) or (
                draft_depth and finished.figures.forwards < expected.forwards
            )

    check()


@settings(max_examples=20, deadline=None)
@given(request=requests(decoder=decoders(caches=("causal",), block_length=BLOCK)), seed=st.integers(0, 40))
def test_the_causal_cache_changes_nothing(request: Request, seed: int) -> None:
    model = model_of(seed)
    cached, finished = run_alone(model, request)
    plain, uncached = run_alone(model, replace(request, decoder=replace(request.decoder, cache="none")))
    assert cached.token_ids == plain.token_ids
    assert finished.figures.forwards == uncached.figures.forwards


@pytest.mark.parametrize("seed", range(3))
def test_any_mix_equals_the_batch_of_one_under_any_pressure(seed: int) -> None:
    """Joins, cancels, shared beginnings, little room, every policy, rule and cache at once."""
    rng = random.Random(seed)
    stems = make_stems(rng, 2)
    added = []
    for index in range(16):
        decoder = DecoderConfig(
            policy=rng.choice(POLICY_NAMES),
            threshold=rng.choice((0.2, 0.6)),
            block_length=BLOCK,
            cache=rng.choice(("none", "causal", "causal", "causal")),
            draft_depth=rng.randint(0, 4),
            draft_increment=rng.choice((1, 2, "policy")),
            acceptance=rng.choice(("exact", "subset", "token")),
        )
        sampling = SamplingParams(temperature=rng.choice((0.0, 1.0)), seed=index)
        prompt = begin_alike(rng, stems, (1, 3))
        added.append(Request(f"r{index}", prompt, rng.randint(1, 14), decoder, sampling))
    assert churn(model_of(seed), added, rng) > 0


@pytest.mark.parametrize("num_prompt", [1, 3, 4, 5, 8, 9])
def test_blocks_begin_behind_the_prompt_and_cost_one_forward_to_open(num_prompt: int) -> None:
    """With everything sure, a block is two forwards: its first token, then the rest."""
    decoder = replace(DECODER, threshold=0.0, draft_depth=0)
    outcome, end = run_alone(model_of(1), Request("r", PROMPT[:num_prompt], 3 * BLOCK, decoder))
    assert len(outcome.token_ids) == 3 * BLOCK
    assert (end.figures.forwards, end.figures.refresh_forwards) == (6, 3)
    assert end.figures.discarded_tokens == 0


@pytest.mark.parametrize("max_tokens", [1, 2, 4, 5])
def test_any_number_of_tokens_is_the_beginning_of_more(max_tokens: int) -> None:
    model = model_of(2)
    longer, _ = run_alone(model, Request("r", PROMPT, 12, DECODER))
    outcome, _ = run_alone(model, Request("r", PROMPT, max_tokens, DECODER))
    assert outcome.token_ids == longer.token_ids[:max_tokens]


def test_a_second_request_reuses_whole_blocks_at_any_offset() -> None:
    """The prompt has ten tokens: its blocks lie at 10, 14, 18, what is kept at multiples of four."""
    model = model_of(3)
    driver = Driver(model)
    first, first_end = run_after(driver, Request("a", PROMPT, 12, DECODER))
    again, again_end = run_after(driver, Request("b", PROMPT, 12, DECODER))
    assert (first_end.figures.reused_tokens, again_end.figures.reused_tokens) == (0, 8)
    assert again.token_ids == first.token_ids
    longer = Request("c", (*PROMPT, *first.token_ids, 8, 8, 8), 10, DECODER)
    outcome, end = run_after(driver, longer)
    assert end.figures.reused_tokens == 16  # of the 18 that were computed in their place
    assert outcome.token_ids == run_alone(model, longer)[0].token_ids


@pytest.mark.parametrize("budget", [8192, 6])
def test_a_prompt_is_scored_in_one_forward(budget: int) -> None:
    model = model_of(4)
    driver = Driver(model, EngineConfig(max_num_batched_tokens=budget, max_logit_rows=3))
    driver.add(Request("r", PROMPT, 5, DECODER, score_prompt=True, num_top_logprobs=3))
    events = []
    while driver.engine.has_work():
        events += driver.step().prompts
    (event,) = events
    logits, _ = plain_forward(model, list(PROMPT), 0, None, open_start=len(PROMPT))
    for position in range(1, len(PROMPT)):
        expected = torch.log_softmax(logits[position - 1], dim=-1)
        assert event.logprobs[position - 1] == pytest.approx(float(expected[PROMPT[position]]), abs=1e-4)
        expected[model.spec.mask_id] = -torch.inf
        assert [token for token, _ in event.top[position - 1]] == expected.topk(3).indices.tolist()
    outcome = driver.outcomes["r"]
    assert outcome.finished is not None
    assert outcome.finished.figures.scoring_forwards == 1
    assert outcome.token_ids == run_alone(model, Request("r", PROMPT, 5, DECODER))[0].token_ids


@pytest.mark.parametrize("cache", CAUSAL_CACHES)
def test_edits_reach_the_first_token_and_drafts_change_nothing(cache: CacheName) -> None:
    """The candidate of a block's first token is read off the text before it, whatever became of the block."""
    changed = 0
    for seed in range(6):
        decoder = DecoderConfig(
            block_length=BLOCK,
            cache=cache,
            threshold=0.4,
            draft_depth=0,
            edit_threshold=0.1,
            max_edit_passes=3,
        )
        request = Request("r", PROMPT[:7], 10, decoder)
        plain, end = run_alone(model_of(seed), request)
        drafted, drafted_end = run_alone(model_of(seed), replace(request, decoder=replace(decoder, draft_depth=4)))
        assert drafted.token_ids == plain.token_ids
        assert drafted_end.figures.forwards <= end.figures.forwards
        unedited, _ = run_alone(model_of(seed), replace(request, decoder=replace(decoder, edit_threshold=None)))
        changed += unedited.token_ids != plain.token_ids
    assert changed


def test_what_does_not_suit_the_attention_is_refused() -> None:
    driver = Driver(model_of(5))
    request = Request("r", PROMPT, 8, DECODER)
    with pytest.raises(RequestError, match="cache must be one of none, causal for this model, got 'dual'"):
        driver.add(replace(request, decoder=replace(DECODER, cache="dual")))
    with pytest.raises(RequestError, match="block_length must be 4 for this model, got 8"):
        driver.add(replace(request, decoder=replace(DECODER, block_length=8)))
    with pytest.raises(RequestError, match="suffix needs a model that sees what follows"):
        driver.add(replace(request, suffix_ids=(1, 2)))
    with pytest.raises(
        ContextError, match=r"rounded up to 248 in blocks of 4\) is 258 tokens; the context limit is 256"
    ):
        driver.add(replace(request, max_tokens=246))
    driver.add(replace(request, max_tokens=244))


def test_the_first_position_comes_alone_and_then_the_policy_speaks() -> None:
    policy = OpensAlone(Greedy())
    candidates = Candidates(np.asarray([1, 2, 3]), np.asarray([-3.0, -1.0, -2.0], np.float32))
    masked = BlockState.masked(3)
    assert policy.select(masked, candidates).tolist() == [0]
    assert policy.rank(masked, candidates).tolist() == [0, 1, 2]
    opened = masked.fill(np.asarray([0]), candidates)
    assert policy.select(opened, candidates).tolist() == [1]
    assert policy.rank(opened, candidates).tolist() == [1, 2]
