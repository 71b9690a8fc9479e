"""Runs one forward for a plan and turns logits into candidates. Owns the model and the key-value arena.

A step waits for the device once: when the candidates are read back (`scoring.on_host`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from psd_core.batch import Batch, build_batch
from psd_core.block import Candidates, TopTokens
from psd_core.errors import OutOfMemoryError
from psd_core.graphs import Graphs, Recorder
from psd_core.kvcache.prefixes import SlotCopy
from psd_core.kvcache.store import KVStore
from psd_core.models.layers import DiffusionDecoder
from psd_core.orders import send_copies, send_forward
from psd_core.plan import Span, StepPlan
from psd_core.scoring import Scores, choose, join, on_host, scored_rows

CPU_ALLOCATOR_WORDS: Final = ("DefaultCPUAllocator: ", "not enough memory: ")


@dataclass(frozen=True, slots=True)
class _Kept:
    """A refresh between two of its portions."""

    num_layers: int  # that it has passed
    hidden: Tensor  # [T', d]


class Runner:
    """One model on one device, or the first rank's part of it, which the others follow (`psd_core.follower`)."""

    def __init__(
        self,
        model: DiffusionDecoder,
        num_slots: int,
        max_logit_rows: int,
        banned_ids: tuple[int, ...],
        recorder: Recorder | None = None,
    ) -> None:
        """banned_ids are never chosen anywhere: the mask id, and ids that no tokenizer defines.

        recorder: repeats denoising forwards of the same shape; None: every forward is launched anew. ConfigError if
        the model cannot be recorded.
        """
        local = model.local
        self.model = model
        model.group.tell([num_slots, max_logit_rows])
        self.store = KVStore(local.num_layers, num_slots, local.num_kv_heads, local.head_dim, model.dtype, model.device)
        self.max_logit_rows = max_logit_rows
        self._graphs = None if recorder is None else Graphs(model, self.store, recorder)
        self._has_followers = model.group.shard.size > 1
        self._kept: dict[str, _Kept] = {}  # by request
        self._banned = torch.tensor(banned_ids, dtype=torch.int64, device=model.device)

    @torch.inference_mode()
    def copy(self, copies: Sequence[SlotCopy]) -> None:
        """Copy keys and values within the arena, one after the other."""
        if self._has_followers and copies:
            send_copies(self.model.group, copies)
        for copy in copies:
            self.store.copy(copy.source, copy.target, copy.length)

    def run(self, plan: StepPlan) -> list[list[Candidates | None]]:
        """One forward. Per span, per row: its candidates, or None for a complete row, which was not computed.

        OutOfMemoryError if it does not fit; what it wrote to the cache by then is written again by the next forward.
        With several ranks it is the device's own error: the others wait in the middle of a forward, and cannot go back.
        """
        if self._has_followers:
            return self._run(plan)
        try:
            return self._run(plan)
        except (torch.OutOfMemoryError, MemoryError) as error:
            reason = str(error)
        except RuntimeError as error:  # a CPU's allocator has no error class of its own
            if not any(words in str(error) for words in CPU_ALLOCATOR_WORDS):
                raise
            reason = str(error)
        # Outside the except clause: the traceback would keep the failed forward's tensors alive.
        if self.model.device.type == "cuda":
            torch.cuda.empty_cache()
        raise OutOfMemoryError(reason)

    @torch.inference_mode()
    def _run(self, plan: StepPlan) -> list[list[Candidates | None]]:
        parts = [self._run_spans(plan)] if plan.spans else []
        parts += self._run_portions(plan)
        offsets = np.cumsum([0, *(hidden.shape[0] for hidden, _ in parts)]).tolist()
        hidden = torch.cat([hidden for hidden, _ in parts]) if len(parts) > 1 else parts[0][0]
        score_index = torch.cat([index + offset for (_, index), offset in zip(parts, offsets, strict=False)])
        return _split(plan.completed, on_host(self._score(hidden, score_index, plan.completed)))

    def _run_spans(self, plan: StepPlan) -> tuple[Tensor, Tensor]:
        """As `_compute`, by a recorded forward if there is one."""
        recorded = self._graphs.run(plan) if self._graphs is not None else None
        return self._compute(plan) if recorded is None else recorded

    def _run_portions(self, plan: StepPlan) -> list[tuple[Tensor, Tensor]]:
        """Take refreshes through some layers each. What `_compute` returns, for those that have passed the last one.

        What is kept of others than those of the plan was of requests that have ended, or that begin anew.
        """
        kept = {name: self._kept[name] for name in plan.paused}
        completed = []
        for portion in plan.portions:
            name, batch = portion.span.request.request_id, self._batch((portion.span,))
            hidden = None
            if portion.layers.start:
                assert self._kept[name].num_layers == portion.layers.start
                hidden = self._kept[name].hidden
            hidden = self.model.advance(batch, self.store, portion.layers, hidden)
            if portion.is_last:
                completed.append((hidden, batch.score_index))
            else:
                kept[name] = _Kept(portion.layers.stop, hidden)
        self._kept = kept
        return completed

    def _compute(self, plan: StepPlan) -> tuple[Tensor, Tensor]:
        """(final hidden states [T, d], which of them are scored [M])."""
        batch = self._batch(plan.spans)
        if self._has_followers:
            send_forward(self.model.group, batch)
        return self.model(batch, self.store), batch.score_index

    def _batch(self, spans: tuple[Span, ...]) -> Batch:
        return build_batch(StepPlan(spans), self.model.spec.is_shifted, self.model.dtype, self.model.device)

    def _score(self, hidden: Tensor, score_index: Tensor, spans: Sequence[Span]) -> Scores:
        """Candidates of every scored position; at most `max_logit_rows` positions are projected at a time."""
        scored = scored_rows(spans, self.model.device)
        if not score_index.shape[0]:  # nothing but beginnings of prompts
            nothing = hidden.new_empty(0, self.model.spec.vocab_size, dtype=torch.float32)
            return choose(nothing, 0, scored, self._banned)
        chunks = []
        for start in range(0, score_index.shape[0], self.max_logit_rows):
            index = score_index[start : start + self.max_logit_rows]
            chunks.append(choose(self.model.project(hidden[index]), start, scored, self._banned))
        return join(chunks)


def _split(spans: Sequence[Span], scores: Scores) -> list[list[Candidates | None]]:
    """Hand the scored positions, which are in the host's memory, back to their spans and rows."""
    token_ids, log_confidence = scores.token_ids.numpy(), scores.log_confidence.numpy()
    entropy = None if scores.entropy is None else scores.entropy.numpy()
    margin = None if scores.margin is None else scores.margin.numpy()
    given = None if scores.given is None else scores.given.numpy()
    top = None
    if scores.top_ids is not None and scores.top_logprobs is not None:
        top = TopTokens(scores.top_ids.numpy(), scores.top_logprobs.numpy())
    result: list[list[Candidates | None]] = []
    offset = 0
    for span in spans:
        rows: list[Candidates | None] = []
        for row, state in enumerate(span.rows):
            if row == span.token_ids.shape[0]:
                rows.append(None)
                continue
            masked = span.scored_positions(row)
            source = slice(offset, offset + masked.size)
            size = state.decided.size
            rows.append(
                Candidates(
                    _place(token_ids, masked, source, size),
                    _place(log_confidence, masked, source, size),
                    None if entropy is None else _place(entropy, masked, source, size),
                    None if margin is None else _place(margin, masked, source, size),
                    None if given is None else _place(given, masked, source, size),
                    None if top is None else _place_top(top, masked, source, size),
                )
            )
            offset += masked.size
        result.append(rows)
    assert offset == token_ids.size
    return result


def _place(values: np.ndarray, masked: np.ndarray, source: slice, size: int) -> np.ndarray:
    """[size, ...] array with `values[source]` at `masked` and 0 elsewhere."""
    placed = np.zeros((size, *values.shape[1:]), values.dtype)
    placed[masked] = values[source]
    return placed


def _place_top(top: TopTokens, masked: np.ndarray, source: slice, size: int) -> TopTokens:
    return TopTokens(_place(top.token_ids, masked, source, size), _place(top.logprobs, masked, source, size))


def describe(spans: tuple[Span, ...]) -> tuple[int, int]:
    """(rows, query tokens) of the spans of one forward."""
    return sum(span.token_ids.shape[0] for span in spans), sum(span.num_tokens for span in spans)
