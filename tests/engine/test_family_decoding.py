"""Every family, in every cache mode it allows: drafts and company change no token."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from psd_core.config import CacheName, DecoderConfig
from psd_core.kvcache.modes import BIDIRECTIONAL_CACHES, CAUSAL_CACHES
from psd_core.models.layers import DiffusionDecoder
from psd_core.models.loader import load_model
from psd_core.request import Request, SamplingParams
from tests.engine.drive import Driver, run_alone

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
FULL = ("llada/ckpt", "llada_gqa", "llada_tied", "dream/ckpt", "lladamoe/ckpt")
CAUSAL = ("llada2/ckpt", "sdar/ckpt", "fastdllm2/ckpt")
CASES = [(family, mode) for family in FULL for mode in BIDIRECTIONAL_CACHES]
CASES += [(family, mode) for family in CAUSAL for mode in CAUSAL_CACHES]
PROMPT = (13, 76, 161, 71, 82, 24, 109)


@cache
def model_of(family: str) -> DiffusionDecoder:
    folder = GOLDEN / family
    return load_model(folder / "ckpt" if (folder / "ckpt").is_dir() else folder)


def request_of(family: str, mode: CacheName, name: str = "r") -> Request:
    block_length = model_of(family).spec.block_length or 8
    decoder = DecoderConfig(threshold=0.6, block_length=block_length, draft_depth=0, cache=mode)
    return Request(name, PROMPT, 24, decoder, stop_ids=frozenset({504}))


@pytest.mark.parametrize(("family", "mode"), CASES)
def test_exact_is_the_policy_at_every_depth(family: str, mode: CacheName) -> None:
    plain = request_of(family, mode)
    expected, plain_end = run_alone(model_of(family), plain)
    for depth in range(1, 8):
        drafted = replace(plain, decoder=replace(plain.decoder, draft_depth=depth))
        outcome, end = run_alone(model_of(family), drafted)
        assert outcome.token_ids == expected.token_ids, f"depth {depth}"
        assert end.figures.forwards <= plain_end.figures.forwards


@pytest.mark.parametrize(("family", "mode"), CASES)
def test_a_batch_equals_its_requests_alone(family: str, mode: CacheName) -> None:
    requests = []
    for index in range(6):
        base = request_of(family, mode, f"r{index}")
        decoder = replace(base.decoder, draft_depth=index % 4, acceptance=("exact", "subset", "token")[index % 3])
        sampling = SamplingParams(temperature=float(index % 2), seed=index)
        prompt = PROMPT[: 3 + index % 5]
        requests.append(replace(base, prompt_ids=prompt, decoder=decoder, sampling=sampling, max_tokens=9 + 3 * index))
    driver = Driver(model_of(family))
    for request in requests:
        driver.add(request)
        driver.step()
    driver.run()
    for request in requests:
        assert driver.outcomes[request.request_id].token_ids == run_alone(model_of(family), request)[0].token_ids
