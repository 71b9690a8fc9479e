"""From logits to candidates: one token per scored position, with the statistics that policies ask for.

M scored positions per forward, numbered by span, row and position; they are handled in chunks of m, so that the
logits' memory is bounded whatever the batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from psd_core.plan import StepPlan
from psd_core.policies import Statistic, make_policy
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
    statistics: frozenset[Statistic]  # what any request of the forward asks for


@dataclass(frozen=True, slots=True)
class Scores:
    """Candidates of M positions. Entropy and margin are None if nobody asked."""

    token_ids: Tensor  # [M] int64
    log_confidence: Tensor  # [M] float32
    entropy: Tensor | None  # [M] float32
    margin: Tensor | None  # [M] float32


def choose(logits: Tensor, start: int, scored: ScoredRows, banned: Tensor) -> Scores:
    """The candidates of one chunk of positions.

    logits   [m, V] float32 of positions `start` … `start` + m - 1 of the forward's scored positions; changed here
    banned   [n] int64: ids never chosen
    Confidence and entropy are of the softmax over all ids, the banned ones included: the model's own distribution.
    """
    stop = start + logits.shape[0]
    normalizer = torch.logsumexp(logits, dim=-1)
    entropy = margin = None
    if "entropy" in scored.statistics:
        log_probability = logits - normalizer[:, None]
        entropy = -(log_probability.exp() * log_probability).sum(dim=-1)
    if banned.numel():
        logits[:, banned] = -torch.inf
    if scored.banned_rows.numel():
        here = (scored.banned_rows >= start) & (scored.banned_rows < stop)
        logits[scored.banned_rows[here] - start, scored.banned_ids[here]] = -torch.inf
    if "margin" in scored.statistics:
        best = (logits.topk(2, dim=-1).values - normalizer[:, None]).exp()
        margin = best[:, 0] - best[:, 1]
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
    return Scores(tokens, logits.gather(1, tokens[:, None]).squeeze(1) - normalizer, entropy, margin)


def join(chunks: list[Scores]) -> Scores:
    """The scores of a whole forward from those of its chunks, in order."""

    def column(parts: list[Tensor | None]) -> Tensor | None:
        present = [part for part in parts if part is not None]
        return torch.cat(present) if present else None

    return Scores(
        torch.cat([chunk.token_ids for chunk in chunks]),
        torch.cat([chunk.log_confidence for chunk in chunks]),
        column([chunk.entropy for chunk in chunks]),
        column([chunk.margin for chunk in chunks]),
    )


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
        statistics=frozenset().union(*(make_policy(span.request.decoder).statistics for span in plan.spans)),
    )


def _concatenate(parts: list[np.ndarray], device: torch.device) -> Tensor:
    joined = np.concatenate(parts) if parts else np.zeros(0, np.int64)
    return torch.from_numpy(joined.astype(np.int64, copy=False)).to(device)
