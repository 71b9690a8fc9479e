"""Keyed noise: distributed as it should be, and a function of seed, choice and position alone."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from psd_core.config import DecoderConfig
from psd_core.request import Request, SamplingParams
from psd_core.sampling import gumbel, noise_keys, sample
from tests.engine.drive import Driver, run_alone
from tests.engine.naive import plain_gumbel
from tests.engine.tiny import tiny_model


def _keys(count: int, seed: int = 0) -> torch.Tensor:
    return noise_keys(torch.full((count,), seed), torch.zeros(count, dtype=torch.int64), torch.arange(count))


def _draw(
    logits: torch.Tensor,
    count: int,
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: int = 0,
    min_p: float = 0.0,
) -> list[int]:
    tokens = sample(
        logits.expand(count, -1).clone(),
        torch.full((count,), temperature),
        torch.full((count,), top_p),
        torch.full((count,), top_k, dtype=torch.int64),
        torch.full((count,), min_p),
        _keys(count),
    )
    return torch.bincount(tokens, minlength=logits.shape[0]).tolist()


@pytest.mark.parametrize("seed", [0, 1, -1, 2**63 - 1, -(2**63)])
def test_noise_equals_the_generator_in_plain_integers(seed: int) -> None:
    keys = noise_keys(torch.tensor([seed]), torch.tensor([3]), torch.tensor([17]))
    noise = gumbel(keys, 50)[0].tolist()
    assert noise == pytest.approx([plain_gumbel(seed, 3, 17, token) for token in range(50)], rel=1e-12)


def test_noise_is_standard_gumbel() -> None:
    noise = gumbel(_keys(200), 1000).flatten()
    assert noise.mean().item() == pytest.approx(0.5772, abs=0.01)  # Euler's constant; standard error 0.003
    assert noise.var().item() == pytest.approx(math.pi**2 / 6, abs=0.03)
    # Neighbouring positions and neighbouring tokens are not correlated.
    table = gumbel(_keys(400), 400)
    assert abs(torch.corrcoef(torch.stack([table[:-1].flatten(), table[1:].flatten()]))[0, 1]) < 0.01
    assert abs(torch.corrcoef(torch.stack([table[:, :-1].flatten(), table[:, 1:].flatten()]))[0, 1]) < 0.01


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_frequencies_follow_the_tempered_softmax(temperature: float) -> None:
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, 0.5])
    count = 40_000
    observed = _draw(logits, count, temperature)
    expected = (torch.softmax(logits / temperature, dim=-1) * count).tolist()
    chi_squared = sum((o - e) ** 2 / e for o, e in zip(observed, expected, strict=True))
    assert chi_squared < 18.5  # 99.9 % quantile at 4 degrees of freedom; the draw is fixed by its keys


def test_top_k_and_top_p_keep_only_the_head_of_the_distribution() -> None:
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    assert _draw(logits, 2000, top_k=2)[2:] == [0, 0]
    assert _draw(logits, 2000, top_p=0.6)[2:] == [0, 0]  # 0.5 < 0.6 <= 0.8: two tokens
    assert _draw(logits, 2000, top_p=0.5)[1:] == [0, 0, 0]
    assert _draw(logits, 2000, top_p=0.81)[3] == 0
    assert _draw(logits, 2000, top_k=4, top_p=1.0)[3] > 0
    assert _draw(logits, 2000, top_p=1e-9)[1:] == [0, 0, 0]


def test_disallowed_tokens_are_never_drawn() -> None:
    logits = torch.tensor([0.0, -torch.inf, 0.0, -torch.inf])
    observed = _draw(logits, 4000, temperature=2.0)
    assert observed[1] == observed[3] == 0


def test_a_seed_gives_the_same_text_whatever_the_batch_and_the_depth() -> None:
    model = tiny_model(4)
    base = Request("r", (4, 9, 2), 20, DecoderConfig(block_length=8, draft_depth=0), SamplingParams(1.0, seed=11))
    expected = run_alone(model, base)[0].token_ids
    for depth in (1, 3, 7):
        deeper = replace(base, decoder=replace(base.decoder, draft_depth=depth))
        assert run_alone(model, deeper)[0].token_ids == expected
    driver = Driver(model)
    for index in range(5):
        driver.add(replace(base, request_id=f"other{index}", sampling=SamplingParams(1.5, seed=index)))
    driver.add(base)
    driver.run()
    assert driver.outcomes["r"].token_ids == expected


def test_seeds_and_choices_give_different_texts() -> None:
    model = tiny_model(4)
    base = Request("r", (4, 9, 2), 20, DecoderConfig(block_length=8), SamplingParams(1.0, seed=11))
    texts = {
        tuple(run_alone(model, replace(base, sampling=SamplingParams(1.0, seed=s, choice_index=c)))[0].token_ids)
        for s in range(3)
        for c in range(3)
    }
    assert len(texts) == 9
