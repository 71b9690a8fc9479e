"""Fast-dLLM v2 decoded as its authors' loop does, token for token and forward for forward.

That loop is no decoder of this project: a block is denoised in smaller blocks, one after the other, writing a finished
block to the cache costs a forward of its own, and that forward also gives the first token of the next block. Its block
cache, moreover, is never emptied: a new block starts with the frozen keys and values of the one before. Here it is
driven from outside, over the engine's own forward, candidates and arena.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from psd_core.block import BlockState, Candidates
from psd_core.kvcache.modes import Window
from psd_core.models.layers import DiffusionDecoder
from psd_core.models.loader import load_model
from psd_core.plan import Span, StepPlan
from psd_core.request import Request
from psd_core.runner import Runner

GOLDEN = Path(__file__).parents[1] / "data" / "golden" / "fastdllm2"
ITEMS: dict[str, dict[str, Any]] = json.loads((GOLDEN / "gen.json").read_text())


@pytest.fixture(scope="module")
def model() -> DiffusionDecoder:
    return load_model(GOLDEN / "ckpt")


class Text:
    """Tokens on a grid of blocks; None is undecided."""

    def __init__(self, model: DiffusionDecoder, prompt: list[int], params: dict[str, Any]) -> None:
        self.ids: list[int | None] = list(prompt)
        self.forwards = 0
        self._length: int = params["block_size"]
        self._mask_id = model.spec.mask_id
        self._request = Request("r", tuple(prompt), params["max_new_tokens"])
        self._frozen_start = len(prompt) + params["max_new_tokens"] + 4 * self._length
        num_slots = self._frozen_start + self._length
        self._runner = Runner(replace_block(model, self._length), num_slots, 1024, (model.spec.mask_id,))

    def forward(self, start: int, stop: int, window: Window) -> Candidates:
        """Candidates of the undecided ones of positions start … stop - 1, which may lie one behind the window."""
        self.forwards += 1
        ids = [*self.ids, None][start:stop]
        state = BlockState(
            np.asarray([token or 0 for token in ids], np.int64), np.asarray([token is not None for token in ids])
        )
        fed = [self._mask_id if token is None else token for token in self.ids[window.start : window.stop]]
        span = Span(
            request=self._request,
            phase="denoise",
            rows=(state,),
            token_ids=np.asarray([fed], np.int64),
            window=window,
            block_start=start,
            slot_start=0,
            causal_block=self._length,
        )
        ((candidates,),) = self._runner.run(StepPlan((span,)))
        assert candidates is not None
        return candidates

    def freeze(self, source: int, offset: int, length: int) -> None:
        """Keep keys and values from slot `source` on as those of the block's positions `offset` …"""
        self._runner.store.copy(source, self._frozen_start + offset, length)

    def thaw(self, start: int) -> None:
        """Put what was kept last where the block at `start` has its own."""
        self._runner.store.copy(self._frozen_start, start, self._length)

    def write(self, start: int) -> None:
        """Cache everything from `start` on, and append the token that follows."""
        stop = len(self.ids)
        candidates = self.forward(stop, stop + 1, Window(start, stop, start))
        self.ids.append(int(candidates.token_ids[0]))

    def has_ended(self, num_prompt: int, stop_id: int | None) -> bool:
        """Whether a stop token stands in the answer with nothing undecided before it."""
        answer = self.ids[num_prompt:]
        return stop_id in answer and None not in answer[: answer.index(stop_id)] if stop_id is not None else False


def replace_block(model: DiffusionDecoder, length: int) -> DiffusionDecoder:
    model.spec = replace(model.spec, block_length=length)
    return model


def decode(text: Text, num_prompt: int, params: dict[str, Any]) -> None:
    """The authors' loop."""
    length, small, stop_id = params["block_size"], params["small_block_size"], params.get("stop_token")
    first = num_prompt // length * length
    if first:
        rest, text.ids = text.ids[first:], text.ids[:first]
        text.write(0)
        if rest:
            text.ids[first:] = rest
    has_frozen = False
    last = num_prompt // length + params["max_new_tokens"] // length
    for start in range(first, last * length, length):
        stop = start + length
        text.ids += [None] * (stop - len(text.ids))
        for small_start in range(start, stop, small):
            small_stop = small_start + small
            while None in text.ids[small_start:small_stop] and not text.has_ended(num_prompt, stop_id):
                window = Window(start, stop, start)
                is_small = params.get("use_block_cache") and has_frozen and text.ids[small_start] is not None
                if is_small:
                    text.thaw(start)
                    window = Window(small_start, small_stop, stop)
                candidates = text.forward(small_start, small_stop, window)
                # The keys and values of a small window lie behind the block it reads.
                if is_small:
                    text.freeze(stop, small_start - start, small)
                else:
                    text.freeze(start, 0, length)
                    has_frozen = True
                masked = np.asarray([token is None for token in text.ids[small_start:small_stop]])
                confidence = np.where(masked, candidates.confidence, -1)
                chosen = confidence > params["threshold"]
                chosen[int(confidence.argmax())] = True
                for position in np.flatnonzero(chosen).tolist():
                    text.ids[small_start + position] = int(candidates.token_ids[position])
        if text.has_ended(num_prompt, stop_id):
            return
        text.write(start)


@pytest.mark.parametrize("name", ITEMS)
def test_tokens_and_forwards_equal_the_reference(model: DiffusionDecoder, name: str) -> None:
    item = ITEMS[name]
    params, (prompt,), (expected,) = item["params"], item["prompt"], item["output"]
    text = Text(model, prompt, params)
    decode(text, len(prompt), params)
    shown = [model.spec.mask_id if token is None else token for token in text.ids]
    assert shown[: len(expected)] == expected
    assert text.forwards == item["calls"]
