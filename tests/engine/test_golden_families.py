"""LLaDA-MoE, SDAR and LLaDA2 decoded as their public reference loops do, token for token.

The block-causal references spend forwards of their own on writing a finished block to the cache and on what lies behind
a stop; here writing is part of the next block's first forward, so ours are as many or fewer. Left out of the data:
SDAR's `sequential` order and LLaDA2's quota below one position per step, which are no policies of this project.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from psd_core.config import DecoderConfig
from psd_core.models.loader import load_model
from psd_core.request import Request
from tests.engine.drive import run_alone

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
ITEMS: dict[tuple[str, str], dict[str, Any]] = {
    (family, name): item
    for family in ("lladamoe", "sdar", "llada2")
    for name, item in json.loads((GOLDEN / family / "gen.json").read_text()).items()
}


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
@pytest.mark.parametrize(("family", "name"), ITEMS)
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
