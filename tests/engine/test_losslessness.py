"""`exact` is the policy, bit for bit, in no more forwards; the naive decoder is the judge."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psd_core.config import CACHE_NAMES, POLICY_NAMES
from psd_core.request import Request
from tests.engine.drive import decoders, requests, run_alone
from tests.engine.naive import naive_decode
from tests.engine.tiny import tiny_model, tiny_spec


@pytest.mark.parametrize("policy", POLICY_NAMES)
@pytest.mark.parametrize("cache", CACHE_NAMES)
def test_exact_equals_the_naive_policy_with_no_more_forwards(policy: str, cache: str) -> None:
    exact = decoders(policies=(policy,), caches=(cache,), acceptances=("exact",))

    @settings(max_examples=50, deadline=None)
    @given(request=requests(decoder=exact), depth=st.integers(1, 7), seed=st.integers(0, 20))
    def check(request: Request, depth: int, seed: int) -> None:
        model = tiny_model(seed, tiny_spec(num_kv_heads=1 + seed % 2, has_tied_head=seed % 3 == 0))
        expected = naive_decode(model, request)
        for draft_depth in (0, depth):
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


@settings(max_examples=60, deadline=None)
@given(request=requests(decoder=decoders(policies=("greedy",), acceptances=("subset",))), seed=st.integers(0, 20))
def test_subset_is_exact_for_a_policy_that_decides_one_position(request: Request, seed: int) -> None:
    model = tiny_model(seed)
    expected = naive_decode(model, request)
    outcome, finished = run_alone(model, request)
    assert outcome.token_ids == expected.token_ids
    assert finished.figures.forwards <= expected.forwards


def test_drafts_are_accepted_often_enough_for_these_tests_to_mean_something() -> None:
    """The cases above would pass with drafts that never hold; on these models about half of them do."""
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
