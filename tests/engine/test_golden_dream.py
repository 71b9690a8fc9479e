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

from psd_core.batch import build_batch
from psd_core.block import BlockState, Candidates, IntArray
from psd_core.config import DecoderConfig
from psd_core.kvcache.modes import Window
from psd_core.models.layers import DiffusionDecoder
from psd_core.models.loader import load_model
from psd_core.plan import Span, StepPlan
from psd_core.policies import make_policy
from psd_core.request import Request
from psd_core.runner import Runner

GOLDEN = Path(__file__).parents[1] / "data" / "golden" / "dream"
ITEMS: dict[str, dict[str, Any]] = json.loads((GOLDEN / "gen.json").read_text())
ORDERS = {"entropy": "entropy", "topk_margin": "margin", "maskgit_plus": "greedy", "confidence_threshold": "greedy"}
EPS = 1e-3  # where the authors' schedule ends


@pytest.fixture(scope="module")
def model() -> DiffusionDecoder:
    return load_model(GOLDEN / "ckpt")


class Canvas:
    """A prompt and its answer, forwarded window by window."""

    def __init__(self, model: DiffusionDecoder, prompt: list[int], params: dict[str, Any]) -> None:
        self.num_new: int = params["max_new_tokens"]
        self.num_prompt = len(prompt)
        self.stop = self.num_prompt + self.num_new
        self.forwards = 0
        self.revealed: list[int] = []
        decoder = DecoderConfig(policy=ORDERS[params["alg"]])
        self._params = params
        self._request = Request("r", tuple(prompt), self.num_new, decoder)
        self._policy = make_policy(decoder)
        self._model = model
        self._runner = Runner(model, 2 * self.stop, 1024, (model.spec.mask_id,))
        self.ids: list[int | None] = [*prompt, *[None] * self.num_new]

    def state(self, start: int, stop: int) -> BlockState:
        ids = self.ids[start:stop]
        decided = np.asarray([token is not None for token in ids])
        return BlockState(np.asarray([token or 0 for token in ids], np.int64), decided)

    def forward(self, start: int, stop: int, window: Window, slot_start: int | None = None) -> Candidates:
        """Candidates of the undecided positions start … stop - 1."""
        self.forwards += 1
        mask_id = self._model.spec.mask_id
        fed = [mask_id if token is None else token for token in self.ids[window.start : window.stop]]
        span = Span(
            request=self._request,
            phase="denoise",
            rows=(self.state(start, stop),),
            token_ids=np.asarray([fed], np.int64),
            window=window,
            block_start=start,
            slot_start=slot_start,
            causal_block=None,
            generated_before=np.zeros(0, np.int64),
        )
        plan = StepPlan((span,))
        if "top_p" in self._params or "top_k" in self._params:
            return self._filtered(plan)
        ((candidates,),) = self._runner.run(plan)
        assert candidates is not None
        return candidates

    @torch.inference_mode()
    def _filtered(self, plan: StepPlan) -> Candidates:
        """The authors take the entropy of the distribution that top-p and top-k leave; this project of the model's."""
        batch = build_batch(plan, True, self._model.dtype, self._model.device)
        logits = self._model.project(self._model(batch, self._runner.store)[batch.score_index])
        ordered, order = logits.sort(dim=-1, descending=True)
        before = ordered.softmax(-1).cumsum(-1) - ordered.softmax(-1)
        keep = before <= self._params.get("top_p", 1.0)
        keep &= torch.arange(logits.shape[1]) < self._params.get("top_k", logits.shape[1])
        logits = torch.full_like(logits, -math.inf).scatter(-1, order, ordered.where(keep, -math.inf))
        probability = logits.softmax(-1)
        state = plan.spans[0].rows[0]
        placed = {
            "token_ids": (logits.argmax(-1), np.int64),
            "log_confidence": (probability.amax(-1).log(), np.float32),
            "entropy": (-torch.special.xlogy(probability, probability).sum(-1), np.float32),
        }
        arrays: dict[str, Any] = {}
        for name, (values, dtype) in placed.items():
            arrays[name] = np.zeros(state.decided.size, dtype)
            arrays[name][~state.decided] = values.numpy()
        return Candidates(**arrays)

    def ranked(self, start: int, stop: int, candidates: Candidates) -> IntArray:
        return self._policy.rank(self.state(start, stop), candidates)

    def first(self, start: int, stop: int, candidates: Candidates, count: int) -> IntArray:
        """The first `count` in order. Filters make many entropies zero: the reference's selection breaks the ties."""
        if "top_p" not in self._params or not count:
            return self.ranked(start, stop, candidates)[:count]
        assert candidates.entropy is not None
        scores = torch.full((1, self.stop), -math.inf)
        masked = np.flatnonzero(~self.state(start, stop).decided)
        scores[0, start + masked] = -torch.from_numpy(candidates.entropy[masked])
        return torch.topk(scores, count).indices[0].numpy() - start

    def fill(self, start: int, positions: IntArray, candidates: Candidates) -> None:
        self.revealed.append(positions.size)
        for position in positions.tolist():
            self.ids[start + position] = int(candidates.token_ids[position])


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
        candidates = canvas.forward(start, stop, Window(0, stop, 0))
        count = scheduled(canvas.state(start, stop).num_masked, step, steps)
        canvas.fill(start, canvas.first(start, stop, candidates, count), candidates)


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
    canvas = Canvas(model, prompt, params)
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
        canvas = Canvas(model, prompt, params)
        decode_own(canvas, params)
        assert canvas.ids[len(prompt) :] == expected[-params["max_new_tokens"] :]
