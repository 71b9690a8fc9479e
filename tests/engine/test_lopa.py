"""LoPA against a plain loop over lists: same tokens, same forwards."""

from __future__ import annotations

import math

import pytest
import torch

from psd_core.config import DecoderConfig
from psd_core.request import Request
from tests.engine.drive import run_alone
from tests.engine.tiny import MASK_ID, plain_forward, tiny_model

Canvas = list[int | None]
Scores = dict[int, tuple[int, float]]  # position -> candidate, confidence
PROMPT = [3, 9, 3, 17, 40, 5]


def _scores(seed: int, canvas: Canvas, block: range) -> Scores:
    logits, _ = plain_forward(tiny_model(seed), [MASK_ID if t is None else t for t in canvas], 0, None)
    probability = torch.softmax(logits, dim=-1)
    probability[:, MASK_ID] = 0
    best = probability.max(dim=-1)
    return {p: (int(best.indices[p]), float(best.values[p])) for p in block if canvas[p] is None}


def _fill(canvas: Canvas, positions: list[int], scores: Scores) -> Canvas:
    filled = list(canvas)
    for position in positions:
        filled[position] = scores[position][0]
    return filled


def _ranked(scores: Scores) -> list[int]:
    return sorted(scores, key=lambda p: (-scores[p][1], p))


def _plain_lopa(seed: int, num_new: int, length: int, threshold: float, branches: int) -> tuple[Canvas, int, int]:
    """(canvas, forwards, branches that won)."""
    canvas: Canvas = [*PROMPT, *[None] * num_new]
    forwards = won = 0
    for start in range(len(PROMPT), len(canvas), length):
        block = range(start, start + length)
        scores = _scores(seed, canvas, block)
        forwards += 1
        while True:
            ranked = _ranked(scores)
            chosen = [p for p in ranked if scores[p][1] >= threshold] or ranked[:1]
            canvas = _fill(canvas, chosen, scores)
            rest = [p for p in ranked if canvas[p] is None]
            if not rest:
                break
            rows = [canvas]
            if len(rest) > 1:
                rows += [_fill(canvas, [p], scores) for p in rest[:branches]]
            scored = [_scores(seed, row, block) for row in rows]
            forwards += 1
            means = [sum(c for _, c in found.values()) / len(found) for found in scored]
            winner = means.index(max(means))
            won += winner > 0
            canvas, scores = rows[winner], scored[winner]
    return canvas, forwards, won


@pytest.mark.parametrize("branches", [1, 3, 5])
@pytest.mark.parametrize("threshold", [0.3, 0.9])
def test_lopa_equals_a_plain_loop(branches: int, threshold: float) -> None:
    total = 0
    for seed in range(4):
        canvas, forwards, won = _plain_lopa(seed, 16, 8, threshold, branches)
        decoder = DecoderConfig(policy="lopa", threshold=threshold, branches=branches, block_length=8, draft_depth=3)
        outcome, finished = run_alone(tiny_model(seed), Request("r", tuple(PROMPT), 16, decoder))
        assert outcome.token_ids == canvas[len(PROMPT) :]
        assert finished.figures.forwards == forwards
        assert finished.figures.accepted_depths[1] == finished.figures.accepted_tokens == won
        assert all(math.isfinite(value) and value <= 0 for value in outcome.logprobs)
        total += won
    assert total > 0
