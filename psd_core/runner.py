"""Runs one forward for a plan and turns logits into candidates. Owns the model and the key-value arena.

This file synchronises with the device, once per step: when the candidates are read back.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from psd_core.batch import Batch, build_batch
from psd_core.block import Candidates
from psd_core.kvcache.store import KVStore
from psd_core.models.layers import DiffusionDecoder
from psd_core.plan import Span, StepPlan
from psd_core.sampling import noise_keys, sample


@dataclass(frozen=True, slots=True)
class ScoredRows:
    """Sampling settings of the scored positions of one forward; M positions, S of them sampled.

    Only what differs from plain argmax is listed, so a batch at temperature 0 carries empty tensors.
    """

    sampled: Tensor  # [S] int64: which of the M positions are sampled
    temperatures: Tensor  # [S] float32
    top_ps: Tensor  # [S] float32
    top_ks: Tensor  # [S] int64
    keys: Tensor  # [S] int64
    banned_rows: Tensor  # [N] int64 of M, with
    banned_ids: Tensor  # [N] int64: tokens not allowed at that position (stop ids before min_tokens)


class Runner:
    """One model on one device."""

    def __init__(
        self, model: DiffusionDecoder, num_slots: int, max_logit_rows: int, banned_ids: tuple[int, ...]
    ) -> None:
        """banned_ids are never chosen anywhere: the mask id, and ids that no tokenizer defines."""
        spec = model.spec
        self.model = model
        self.store = KVStore(spec.num_layers, num_slots, spec.num_kv_heads, spec.head_dim, model.dtype, model.device)
        self.max_logit_rows = max_logit_rows
        self._banned = torch.tensor(banned_ids, dtype=torch.int64, device=model.device)

    @torch.inference_mode()
    def run(self, plan: StepPlan) -> list[list[Candidates | None]]:
        """One forward. Per span, per row: its candidates, or None for a complete row, which was not computed."""
        batch = build_batch(plan, self.model.dtype, self.model.device)
        hidden = self.model(batch, self.store)
        token_ids, log_confidence = self._score(hidden, batch, plan)
        return _split(plan, token_ids, log_confidence)

    def _score(self, hidden: Tensor, batch: Batch, plan: StepPlan) -> tuple[np.ndarray, np.ndarray]:
        """Candidate token and log confidence of every scored position, [M] each.

        The vocabulary projection runs over at most `max_logit_rows` positions at a time.
        """
        scored = scored_rows(plan, self.model.device)
        token_ids, log_confidence = [], []
        for start in range(0, batch.score_index.shape[0], self.max_logit_rows):
            index = batch.score_index[start : start + self.max_logit_rows]
            logits = self.model.project(hidden[index])
            chosen, confidence = choose(logits, start, scored, self._banned)
            token_ids.append(chosen)
            log_confidence.append(confidence)
        return torch.cat(token_ids).cpu().numpy(), torch.cat(log_confidence).cpu().numpy()


def choose(logits: Tensor, start: int, scored: ScoredRows, banned: Tensor) -> tuple[Tensor, Tensor]:
    """Candidate tokens [m] int64 and their log confidence [m] float32 for one chunk of positions.

    logits   [m, V] float32 of positions `start` … `start` + m - 1 of the forward's scored positions; changed here
    banned   [n] int64: ids never chosen
    The confidence is the softmax over all ids, the banned ones included: it is the model's own probability.
    """
    stop = start + logits.shape[0]
    normalizer = torch.logsumexp(logits, dim=-1)
    if banned.numel():
        logits[:, banned] = -torch.inf
    here = (scored.banned_rows >= start) & (scored.banned_rows < stop)
    if scored.banned_rows.numel():
        logits[scored.banned_rows[here] - start, scored.banned_ids[here]] = -torch.inf
    tokens = torch.argmax(logits, dim=-1)
    if scored.sampled.numel():
        rows = (scored.sampled >= start) & (scored.sampled < stop)
        local = scored.sampled[rows] - start
        if local.numel():
            tokens[local] = sample(
                logits[local],
                scored.temperatures[rows],
                scored.top_ps[rows],
                scored.top_ks[rows],
                scored.keys[rows],
            )
    return tokens, logits.gather(1, tokens[:, None]).squeeze(1) - normalizer


def scored_rows(plan: StepPlan, device: torch.device) -> ScoredRows:
    """The sampling settings of every scored position of `plan`, by span, row and position."""
    sampled: list[np.ndarray] = []
    settings: list[tuple[float, float, int, int, int, int]] = []
    index_of_generated: list[np.ndarray] = []
    banned_rows: list[np.ndarray] = []
    banned_ids: list[np.ndarray] = []
    offset = 0
    for span in plan.spans:
        request, params = span.request, span.request.sampling
        first = span.block_start - len(request.prompt_ids)
        for row in range(span.token_ids.shape[0]):
            masked = np.flatnonzero(~span.rows[row].decided)
            if params.temperature > 0:
                sampled.append(offset + np.arange(masked.size))
                index_of_generated.append(first + masked)
                settings.append(
                    (params.temperature, params.top_p, params.top_k, params.seed, params.choice_index, masked.size)
                )
            if request.stop_ids and first < request.min_tokens:
                early = offset + np.flatnonzero(first + masked < request.min_tokens)
                ids = np.asarray(sorted(request.stop_ids), np.int64)
                banned_rows.append(np.repeat(early, ids.size))
                banned_ids.append(np.tile(ids, early.size))
            offset += masked.size
    counts = [entry[5] for entry in settings]

    def column(index: int, dtype: torch.dtype) -> Tensor:
        values = np.repeat(np.asarray([entry[index] for entry in settings]), counts)
        return torch.from_numpy(values).to(dtype).to(device)

    positions = _concatenate(index_of_generated, device)
    return ScoredRows(
        sampled=_concatenate(sampled, device),
        temperatures=column(0, torch.float32),
        top_ps=column(1, torch.float32),
        top_ks=column(2, torch.int64),
        keys=noise_keys(column(3, torch.int64), column(4, torch.int64), positions),
        banned_rows=_concatenate(banned_rows, device),
        banned_ids=_concatenate(banned_ids, device),
    )


def _split(plan: StepPlan, token_ids: np.ndarray, log_confidence: np.ndarray) -> list[list[Candidates | None]]:
    """Hand the scored positions back to their spans and rows."""
    result: list[list[Candidates | None]] = []
    offset = 0
    for span in plan.spans:
        rows: list[Candidates | None] = []
        for row, state in enumerate(span.rows):
            if row == span.token_ids.shape[0]:
                rows.append(None)
                continue
            masked = np.flatnonzero(~state.decided)
            ids = np.zeros(state.decided.size, np.int64)
            confidence = np.full(state.decided.size, -np.inf, np.float32)
            ids[masked] = token_ids[offset : offset + masked.size]
            confidence[masked] = log_confidence[offset : offset + masked.size]
            rows.append(Candidates(ids, confidence))
            offset += masked.size
        result.append(rows)
    assert offset == token_ids.size
    return result


def _concatenate(parts: list[np.ndarray], device: torch.device) -> Tensor:
    joined = np.concatenate(parts) if parts else np.zeros(0, np.int64)
    return torch.from_numpy(joined.astype(np.int64, copy=False)).to(device)


def describe(spans: tuple[Span, ...]) -> tuple[int, int]:
    """(rows, query tokens) of the spans of one forward."""
    return sum(span.token_ids.shape[0] for span in spans), sum(span.num_tokens for span in spans)
