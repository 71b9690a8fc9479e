"""`exact` is the policy, bit for bit, in no more forwards; the naive decoder is the judge."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psd_core.config import POLICY_NAMES, CacheName, DraftDepth, PolicyName
from psd_core.kvcache.modes import BIDIRECTIONAL_CACHES
from psd_core.request import Request
from tests.engine.drive import decoders, requests, run_alone
from tests.engine.naive import naive_decode
from tests.engine.tiny import tiny_model, tiny_spec


@pytest.mark.parametrize("policy", [name for name in POLICY_NAMES if name != "lopa"])
@pytest.mark.parametrize("cache", [*BIDIRECTIONAL_CACHES, "causal"])
def test_exact_equals_the_naive_policy_with_no_more_forwards(policy: PolicyName, cache: CacheName) -> None:
    block_length = 4 if cache == "causal" else None
    exact = decoders(policies=(policy,), caches=(cache,), acceptances=("exact",), block_length=block_length)

    @settings(max_examples=40, deadline=None)
    @given(request=requests(decoder=exact), depth=st.sampled_from([1, 2, 3, 5, 7, "auto"]), seed=st.integers(0, 40))
    def check(request: Request, depth: DraftDepth, seed: int) -> None:
        spec = tiny_spec(1 + seed % 2, seed % 3 == 0, is_shifted=seed % 4 == 1, block_length=block_length)
        model = tiny_model(seed, spec)
        expected = naive_decode(model, request)
        depths: tuple[DraftDepth, ...] = (0, depth)
        for draft_depth in depths:
            decoder = replace(request.decoder, draft_depth=draft_depth)
            outcome, finished = run_alone(model, replace(request, decoder=decoder))
            assert outcome.token_ids == expected.token_ids
            assert finished.reason == expected.reason
            assert outcome.logprobs == pytest.approx(expected.logprobs, abs=1e-4)
            assert finished.figures.generated_tokens == len(expected.token_ids)
            if draft_depth == 0:
                assert finished.figures.forwards == expected.forwards
            else:
                assert finished.figures.forwards <= expected.forwards

    check()


@settings(max_examples=40, deadline=None)
@given(request=requests(decoder=decoders(caches=("causal",), block_length=4)), seed=st.integers(0, 40))
def test_the_causal_cache_changes_nothing_in_a_block_causal_model(request: Request, seed: int) -> None:
    model = tiny_model(seed, tiny_spec(is_shifted=seed % 2 == 1, block_length=4))
    cached, finished = run_alone(model, request)
    plain, uncached = run_alone(model, replace(request, decoder=replace(request.decoder, cache="none")))
    assert cached.token_ids == plain.token_ids
    assert finished.figures.forwards == uncached.figures.forwards


@settings(max_examples=60, deadline=None)
@given(request=requests(decoder=decoders(policies=("greedy",), acceptances=("subset",))), seed=st.integers(0, 20))
def test_subset_is_exact_for_a_policy_that_decides_one_position(request: Request, seed: int) -> None:
    model = tiny_model(seed)
    expected = naive_decode(model, request)
    outcome, finished = run_alone(model, request)
    assert outcome.token_ids == expected.token_ids
    assert finished.figures.forwards <= expected.forwards


def test_drafts_are_accepted_often_enough_for_these_tests_to_mean_something() -> None:
    """The cases above would pass with drafts that never hold; on these models many do, and many do not."""
    drafted = accepted = 0
    for seed in range(8):
        model = tiny_model(seed)
        for rule in ("exact", "subset", "token"):
            request = Request("r", (3, 4, 5), 24)
            decoder = replace(request.decoder, policy="greedy", block_length=8, draft_depth=3, acceptance=rule)
            _, finished = run_alone(model, replace(request, decoder=decoder))
            drafted += finished.figures.drafted_tokens
            accepted += finished.figures.accepted_tokens
    assert 0.1 < accepted / drafted < 0.9


def test_drafts_in_any_order_save_forwards_and_change_nothing_else() -> None:
    """Over some random models, sets of positions take fewer forwards than a chain of as many rows; figures add up."""
    forwards = {1: 0, "subsets": 0}
    for seed in range(6):
        model = tiny_model(seed)
        request = Request("r", (3, 4, 5), 32)
        decoder = replace(request.decoder, policy="greedy", block_length=16, draft_depth=3)
        texts = []
        for increment in forwards:
            drafting = replace(decoder, draft_increment=increment)  # type: ignore[arg-type]  # 1 or the word
            outcome, finished = run_alone(model, replace(request, decoder=drafting))
            figures = finished.figures
            texts.append(outcome.token_ids)
            forwards[increment] += figures.forwards
            assert figures.accepted_tokens <= figures.drafted_tokens
            assert sum(figures.accepted_depths) == figures.forwards
        assert texts[0] == texts[1] == naive_decode(model, replace(request, decoder=decoder)).token_ids
    assert forwards["subsets"] < forwards[1]
