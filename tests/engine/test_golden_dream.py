"""Dream decoded as its authors' loop and Fast-dLLM's do, token for token and forward for forward.

These loops are not decoders of this project: the authors' schedule decides nothing in its first step and two
positions in the last, over the whole answer at once; Fast-dLLM caps a step and makes up for it later, or takes the
first token of each block from the block's full pass alone. Here they are driven from outside, over the engine's own
forward, candidates and orders, which are what the data judge. Items that share the reference's random stream are left
out.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from psd_core.block import Candidates, IntArray
from psd_core.config import DecoderConfig, PolicyName
from psd_core.kvcache.modes import Window
from psd_core.models.layers import DiffusionDecoder
from psd_core.models.loader import load_model
from tests.engine.canvas import Canvas

GOLDEN = Path(__file__).parents[1] / "data" / "golden" / "dream"
ITEMS: dict[str, dict[str, Any]] = json.loads((GOLDEN / "gen.json").read_text())
ORDERS: dict[str, PolicyName] = {
    "entropy": "entropy",
    "topk_margin": "margin",
    "maskgit_plus": "greedy",
    "confidence_threshold": "greedy",
}
EPS = 1e-3  # where the authors' schedule ends


@pytest.fixture(scope="module")
def model() -> DiffusionDecoder:
    return load_model(GOLDEN / "ckpt")


def make_canvas(model: DiffusionDecoder, prompt: list[int], params: dict[str, Any]) -> Canvas:
    return Canvas(model, prompt, params["max_new_tokens"], DecoderConfig(policy=ORDERS[params["alg"]]))


def filtered(canvas: Canvas, params: dict[str, Any]) -> Candidates:
    """The authors take the entropy of the distribution that top-p and top-k leave; this project of the model's."""
    canvas.forwards += 1
    logits = canvas.logits(canvas.num_prompt, canvas.stop)
    ordered, order = logits.sort(dim=-1, descending=True)
    before = ordered.softmax(-1).cumsum(-1) - ordered.softmax(-1)
    keep = before <= params.get("top_p", 1.0)
    keep &= torch.arange(logits.shape[1]) < params.get("top_k", logits.shape[1])
    left = torch.full_like(logits, -math.inf).scatter(-1, order, ordered.where(keep, -math.inf))
    return canvas.candidates_of(canvas.num_prompt, canvas.stop, left)


def first(canvas: Canvas, candidates: Candidates, count: int, params: dict[str, Any]) -> IntArray:
    """The first `count` in order. Filters make many entropies zero: the reference's selection breaks the ties."""
    start, stop = canvas.num_prompt, canvas.stop
    if "top_p" not in params or not count:
        return canvas.ranked(start, stop, candidates)[:count]
    assert candidates.entropy is not None
    scores = torch.full((1, stop), -math.inf)
    masked = np.flatnonzero(~canvas.state(start, stop).decided)
    scores[0, start + masked] = -torch.from_numpy(candidates.entropy[masked])
    chosen: IntArray = torch.topk(scores, count).indices[0].numpy() - start
    return chosen


def scheduled(num_masked: int, step: int, steps: int) -> int:
    """Positions that the authors' schedule decides in a step: everything in the last one."""
    if step == steps - 1:
        return num_masked
    times = torch.linspace(1, EPS, steps + 1)
    return int(num_masked * (1 - times[step + 1] / times[step]))


def decode_own(canvas: Canvas, params: dict[str, Any]) -> None:
    """The authors' loop: no blocks, a fixed number of forwards."""
    start, stop, steps = canvas.num_prompt, canvas.stop, params["steps"]
    for step in range(steps):
        has_filter = "top_p" in params or "top_k" in params
        candidates = filtered(canvas, params) if has_filter else canvas.forward(start, stop, Window(0, stop, 0))
        count = scheduled(canvas.state(start, stop).num_masked, step, steps)
        canvas.fill(start, first(canvas, candidates, count, params), candidates)


def decode_capped(canvas: Canvas, params: dict[str, Any]) -> None:
    """Fast-dLLM without a cache: a step takes at most its share, and what a threshold kept back is tried again."""
    start, stop = canvas.num_prompt, canvas.stop
    share, left = canvas.num_new // params["steps"], 0
    while any(token is None for token in canvas.ids):
        candidates = canvas.forward(start, stop, Window(0, stop, 0))
        tried = canvas.ranked(start, stop, candidates)[: share + left]
        passed = candidates.confidence[tried] >= params["threshold"]
        passed[0] = True
        left = int((~passed).sum())
        canvas.fill(start, tried[passed], candidates)


def decode_blocks(canvas: Canvas, params: dict[str, Any]) -> None:
    """Fast-dLLM with a cache: the first token of a block from a full pass, the rest within a frozen context."""
    length = params["block_length"]
    steps = params["steps"] * length // canvas.num_new
    for start in range(canvas.num_prompt, canvas.stop, length):
        stop = start + length
        window = Window(start, stop, canvas.stop) if params["dual_cache"] else Window(start, canvas.stop, start)
        candidates = canvas.forward(start, stop, Window(0, canvas.stop, 0), slot_start=0)
        canvas.fill(start, np.asarray([0]), candidates)
        step = 1
        while None in canvas.ids[start:stop]:
            candidates = canvas.forward(start, stop, window, slot_start=0)
            ranked = canvas.ranked(start, stop, candidates)
            if "threshold" in params:
                passed = candidates.confidence[ranked] >= params["threshold"]
                passed[0] = True
                chosen = ranked[passed]
            else:
                chosen = ranked[: scheduled(ranked.size, step, steps)]
            canvas.fill(start, chosen, candidates)
            step += 1


@pytest.mark.parametrize("name", [name for name in ITEMS if "leftpad" not in name])
def test_tokens_and_forwards_equal_the_reference(model: DiffusionDecoder, name: str) -> None:
    item = ITEMS[name]
    params, (prompt,) = item["params"], item["prompt"]
    canvas = make_canvas(model, prompt, params)
    decode = decode_blocks if "block_length" in params else decode_capped if "threshold" in params else decode_own
    decode(canvas, params)
    assert canvas.ids == item["output"][0]
    assert canvas.forwards == item["calls"]
    if item.get("revealed_per_call"):
        assert canvas.revealed == item["revealed_per_call"]


def test_a_padded_batch_of_the_reference_equals_its_rows_alone(model: DiffusionDecoder) -> None:
    item = ITEMS["dream_entropy_batch3_leftpad"]
    params = item["params"]
    for row, mask, expected in zip(item["prompt"], params["attention_mask"], item["output"], strict=True):
        prompt = [token for token, is_real in zip(row, mask, strict=True) if is_real]
        canvas = make_canvas(model, prompt, params)
        decode_own(canvas, params)
        assert canvas.ids[len(prompt) :] == expected[-params["max_new_tokens"] :]
