"""A canvas that a test drives itself, over the engine's own forward: for reference loops that are no decoders here."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from psd_core.batch import build_batch
from psd_core.block import BlockState, Candidates, IntArray
from psd_core.config import DecoderConfig
from psd_core.kvcache.modes import Window
from psd_core.models.layers import DiffusionDecoder
from psd_core.plan import Span, StepPlan
from psd_core.policies import make_policy
from psd_core.request import Request
from psd_core.runner import Runner


class Canvas:
    """A prompt and `num_new` undecided positions. Counts forwards, and positions decided per forward."""

    def __init__(self, model: DiffusionDecoder, prompt: Sequence[int], num_new: int, decoder: DecoderConfig) -> None:
        self.model = model
        self.num_prompt, self.num_new = len(prompt), num_new
        self.stop = self.num_prompt + num_new
        self.forwards = 0
        self.revealed: list[int] = []
        self.policy = make_policy(decoder)
        self.ids: list[int | None] = [*prompt, *[None] * num_new]
        self._request = Request("r", tuple(prompt), num_new, decoder)
        self._runner = Runner(model, 2 * self.stop, 1024, (model.spec.mask_id,))

    def state(self, start: int, stop: int) -> BlockState:
        ids = self.ids[start:stop]
        decided = np.asarray([token is not None for token in ids])
        return BlockState(np.asarray([token or 0 for token in ids], np.int64), decided)

    def forward(self, start: int, stop: int, window: Window, slot_start: int | None = None) -> Candidates:
        """Candidates of the undecided ones of positions start … stop - 1."""
        self.forwards += 1
        ((candidates,),) = self._runner.run(self._plan(start, stop, window, slot_start, self.ids))
        assert candidates is not None
        return candidates

    @torch.inference_mode()
    def logits(self, start: int, stop: int, hidden: Sequence[int] = ()) -> Tensor:
        """[masked positions, V] of a pass over everything, with the positions in `hidden` shown as masks."""
        fed = [None if index in hidden else token for index, token in enumerate(self.ids)]
        plan = self._plan(start, stop, Window(0, self.stop, 0), None, fed)
        batch = build_batch(plan, self.model.spec.is_shifted, self.model.dtype, self.model.device)
        return self.model.project(self.model(batch, self._runner.store)[batch.score_index])

    def candidates_of(self, start: int, stop: int, logits: Tensor) -> Candidates:
        """Candidates from the logits of the undecided positions."""
        probability = logits.softmax(-1)
        state = self.state(start, stop)
        placed: list[np.ndarray] = []
        for values, dtype in (
            (logits.argmax(-1), np.int64),
            (probability.amax(-1).log(), np.float32),
            (-torch.special.xlogy(probability, probability).sum(-1), np.float32),
        ):
            array = np.zeros(state.decided.size, dtype)
            array[~state.decided] = values.numpy()
            placed.append(array)
        return Candidates(placed[0], placed[1], entropy=placed[2])

    def ranked(self, start: int, stop: int, candidates: Candidates) -> IntArray:
        return self.policy.rank(self.state(start, stop), candidates)

    def fill(self, start: int, positions: IntArray, candidates: Candidates) -> None:
        self.revealed.append(positions.size)
        for position in positions.tolist():
            self.ids[start + position] = int(candidates.token_ids[position])

    def _plan(
        self, start: int, stop: int, window: Window, slot_start: int | None, ids: Sequence[int | None]
    ) -> StepPlan:
        mask_id = self.model.spec.mask_id
        fed = [mask_id if token is None else token for token in ids[window.start : window.stop]]
        span = Span(
            request=self._request,
            phase="denoise",
            rows=(self.state(start, stop),),
            token_ids=np.asarray([fed], np.int64),
            window=window,
            block_start=start,
            slot_start=slot_start,
            causal_block=self.model.spec.block_length,
        )
        return StepPlan((span,))
