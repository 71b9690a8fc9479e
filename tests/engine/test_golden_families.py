"""LLaDA-MoE, SDAR and LLaDA2 decoded as their public reference loops do, token for token.

The block-causal references spend forwards of their own on writing a finished block to the cache and on what lies behind
a stop; here writing is part of the next block's first forward, so ours are as many or fewer. SDAR's `sequential` order
and LLaDA2's quota beside its threshold are no policies of this project: those loops are driven from outside, over the
engine's forward.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from psd_core.config import DecoderConfig
from psd_core.kvcache.modes import Window
from psd_core.models.loader import load_model
from psd_core.request import Request
from tests.engine.canvas import Canvas
from tests.engine.drive import run_alone

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
ITEMS: dict[tuple[str, str], dict[str, Any]] = {
    (family, name): item
    for family in ("lladamoe", "sdar", "llada2")
    for name, item in json.loads((GOLDEN / family / "gen.json").read_text()).items()
}
QUIRKS = [key for key in ITEMS if key[1] in ("sdar_sequential_bl4", "llada2_steps4")]


def decoder_of(params: dict[str, Any]) -> DecoderConfig:
    """The policy that the reference's parameters amount to: a threshold above 1 never decides more than the quota."""
    block_length = params["block_length"]
    steps = params.get("denoising_steps", block_length)
    threshold = params.get("confidence_threshold", params.get("threshold"))
    if threshold is not None and threshold <= 1:
        return DecoderConfig(policy="threshold", threshold=threshold, block_length=block_length)
    if steps == block_length:
        return DecoderConfig(policy="greedy", block_length=block_length)
    return DecoderConfig(policy="topk", k=block_length // steps, block_length=block_length)


@pytest.mark.parametrize("depth", [0, 3])
@pytest.mark.parametrize(("family", "name"), [key for key in ITEMS if key not in QUIRKS])
def test_tokens_equal_the_reference(family: str, name: str, depth: int) -> None:
    item = ITEMS[family, name]
    params, prompt = item["params"], tuple(item["prompt"])
    model = load_model(GOLDEN / family / "ckpt")
    decoder = replace(decoder_of(params), draft_depth=depth)
    if family != "lladamoe":
        # The references take the block length as an argument; a checkpoint of ours has one.
        model.spec = replace(model.spec, block_length=decoder.block_length)
        decoder = replace(decoder, cache="causal")
    stop_ids = frozenset(params.get("stopping_criteria_idx", [params["eos_id"]] if "eos_id" in params else []))
    outcome, finished = run_alone(model, Request("r", prompt, params["gen_length"], decoder, stop_ids=stop_ids))
    expected = item["output"][len(prompt) :][: len(outcome.token_ids)]
    assert outcome.token_ids == expected
    assert finished.reason == "stop" or len(expected) == params["gen_length"]
    if depth == 0 and family == "lladamoe":
        assert finished.figures.forwards == item["calls"]
    else:
        assert finished.figures.forwards <= item["calls"]


@pytest.mark.parametrize(("family", "name"), QUIRKS)
def test_loops_that_are_no_decoders_are_reproduced_over_the_engine(family: str, name: str) -> None:
    item = ITEMS[family, name]
    params, prompt = item["params"], item["prompt"]
    length = params["block_length"]
    model = load_model(GOLDEN / family / "ckpt")
    model.spec = replace(model.spec, block_length=length)
    num_new = -(-(len(prompt) + params["gen_length"]) // length) * length - len(prompt)
    canvas = Canvas(model, prompt, num_new, DecoderConfig(policy="greedy"))
    quota = length // params.get("denoising_steps", params.get("steps"))
    for start in range(canvas.num_prompt // length * length, canvas.stop, length):
        stop = start + length
        while None in canvas.ids[start:stop]:
            candidates = canvas.forward(start, stop, Window(0, stop, 0))
            ranked = canvas.ranked(start, stop, candidates)
            if params.get("remasking_strategy") == "sequential":
                chosen = np.sort(ranked)[:quota]
            else:
                sure = ranked[candidates.confidence[ranked] > params["threshold"]]
                chosen = sure if sure.size >= quota else ranked[:quota]
            canvas.fill(start, chosen, candidates)
    expected = item["output"]
    assert canvas.ids[: len(expected)] == expected
    assert canvas.forwards <= item["calls"]
