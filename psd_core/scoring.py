"""From logits to candidates: one token per scored position, with the statistics that policies ask for.

M scored positions per forward, numbered by span, row and position; they are handled in chunks of m, so that the
logits' memory is bounded whatever the batch.
This file synchronises with the device, in `on_host`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from psd_core.adjustment import Adjustment, adjustment
from psd_core.block import IntArray
from psd_core.plan import Span
from psd_core.policies import Statistic, make_policy
from psd_core.sampling import noise_keys, sample
from psd_core.upload import upload


@dataclass(frozen=True, slots=True)
class Picked:
    """Some of the M positions, ascending; one may occur several times."""

    index: IntArray  # [N], in the host's memory: a chunk's entries are found without asking the device
    on_device: Tensor  # [N] int64, the same

    def within(self, start: int, stop: int) -> slice:
        """The entries of positions `start` … `stop` - 1."""
        first, last = np.searchsorted(self.index, (start, stop))
        return slice(int(first), int(last))


@dataclass(frozen=True, slots=True)
class ScoredRows:
    """Sampling settings of the scored positions of one forward; M positions, S of them sampled.

    Only what differs from plain argmax is listed, so a batch at temperature 0 carries empty tensors.
    """

    sampled: Picked  # [S]: which of the M positions are sampled
    temperatures: Tensor  # [S] float32
    top_ps: Tensor  # [S] float32
    top_ks: Tensor  # [S] int64
    min_ps: Tensor  # [S] float32
    keys: Tensor  # [S] int64
    has_top: bool  # whether any top_p or top_k leaves tokens out
    has_min_p: bool  # whether any min_p does
    banned: Picked  # [N], with
    banned_ids: Tensor  # [N] int64: tokens not allowed at that position (stop ids before min_tokens)
    adjusted: Picked  # [A], with
    adjusted_ids: Tensor  # [A] int64: logits to divide (multiply, where negative) by
    adjusted_factors: Tensor  # [A] float32, and to add
    adjusted_offsets: Tensor  # [A] float32 to
    given: Picked  # [G], with
    given_ids: Tensor  # [G] int64: tokens whose log-probability is wanted, whatever is chosen
    num_top: int  # alternatives per position, the most that any request of the forward asks for
    statistics: frozenset[Statistic]  # what any request of the forward asks for


@dataclass(frozen=True, slots=True)
class Scores:
    """Candidates of M positions. What nobody asked for is None."""

    token_ids: Tensor  # [M] int64
    log_confidence: Tensor  # [M] float32
    entropy: Tensor | None  # [M] float32
    margin: Tensor | None  # [M] float32
    given: Tensor | None  # [M] float32, 0 where nothing is given
    top_ids: Tensor | None  # [M, K] int64
    top_logprobs: Tensor | None  # [M, K] float32


def choose(logits: Tensor, start: int, scored: ScoredRows, banned: Tensor) -> Scores:
    """The candidates of one chunk of positions.

    logits   [m, V] float32 of positions `start` … `start` + m - 1 of the forward's scored positions; changed here
    banned   [n] int64: ids never chosen
    Confidence and entropy are of the softmax over all ids, the banned ones included: the model's own distribution, as
    changed by penalties and bias.
    """
    stop = start + logits.shape[0]
    _adjust(logits, start, scored)
    normalizer = torch.logsumexp(logits, dim=-1)
    entropy = margin = given = top_ids = top_logprobs = None
    if scored.given.index.size:
        here = scored.given.within(start, stop)
        rows = scored.given.on_device[here] - start
        given = torch.zeros_like(normalizer)
        given[rows] = logits[rows, scored.given_ids[here]] - normalizer[rows]
    if "entropy" in scored.statistics:
        log_probability = logits - normalizer[:, None]
        entropy = -(log_probability.exp() * log_probability).sum(dim=-1)
    if banned.numel():
        logits[:, banned] = -torch.inf
    if scored.banned.index.size:
        here = scored.banned.within(start, stop)
        logits[scored.banned.on_device[here] - start, scored.banned_ids[here]] = -torch.inf
    if "margin" in scored.statistics:
        two = (logits.topk(2, dim=-1).values - normalizer[:, None]).exp()
        margin = two[:, 0] - two[:, 1]
    if scored.num_top:
        best = logits.topk(min(scored.num_top, logits.shape[1]), dim=-1)
        top_ids, top_logprobs = best.indices, best.values - normalizer[:, None]
    tokens = torch.argmax(logits, dim=-1)
    here = scored.sampled.within(start, stop)
    if here.start < here.stop:
        rows = scored.sampled.on_device[here] - start
        tokens[rows] = sample(
            logits[rows],
            scored.temperatures[here],
            scored.top_ps[here],
            scored.top_ks[here],
            scored.min_ps[here],
            scored.keys[here],
            has_top=scored.has_top,
            has_min_p=scored.has_min_p,
        )
    log_confidence = logits.gather(1, tokens[:, None]).squeeze(1) - normalizer
    return Scores(tokens, log_confidence, entropy, margin, given, top_ids, top_logprobs)


def _adjust(logits: Tensor, start: int, scored: ScoredRows) -> None:
    """Apply penalties and bias in place; no (row, id) pair occurs twice."""
    here = scored.adjusted.within(start, start + logits.shape[0])
    if here.start == here.stop:
        return
    rows, ids = scored.adjusted.on_device[here] - start, scored.adjusted_ids[here]
    values, factors = logits[rows, ids], scored.adjusted_factors[here]
    logits[rows, ids] = torch.where(values > 0, values / factors, values * factors) + scored.adjusted_offsets[here]


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
        column([chunk.given for chunk in chunks]),
        column([chunk.top_ids for chunk in chunks]),
        column([chunk.top_logprobs for chunk in chunks]),
    )


def on_host(scores: Scores) -> Scores:
    """The same in the host's memory, by one copy: the only time a step waits for the device."""
    columns = [scores.token_ids, scores.log_confidence, scores.entropy, scores.margin, scores.given]
    columns += [scores.top_ids, scores.top_logprobs]
    present = [column for column in columns if column is not None]
    # Every id and every float32 is four bytes.
    packed = [one.view(torch.int32) if one.is_floating_point() else one.to(torch.int32) for one in present]
    parts = torch.split(torch.cat([one.flatten() for one in packed]).cpu(), [one.numel() for one in packed])
    read = iter(
        (part.view(torch.float32) if one.is_floating_point() else part.long()).view(one.shape)
        for part, one in zip(parts, present, strict=True)
    )
    token_ids, log_confidence, *others = [None if column is None else next(read) for column in columns]
    assert token_ids is not None
    assert log_confidence is not None
    return Scores(token_ids, log_confidence, *others)


def scored_rows(spans: Sequence[Span], device: torch.device) -> ScoredRows:
    """The sampling settings of every scored position, by span, row and position."""
    sampled: list[IntArray] = []
    settings: list[tuple[float, float, int, float, int, int]] = []
    counts: list[int] = []
    index_of_generated: list[IntArray] = []
    banned: list[tuple[IntArray, IntArray]] = []
    adjusted: list[tuple[IntArray, Adjustment]] = []
    given: list[tuple[IntArray, IntArray]] = []
    offset = 0
    for span in spans:
        request, params = span.request, span.request.sampling
        first = span.block_start - len(request.prompt_ids)
        for row in range(span.token_ids.shape[0]):
            masked = span.scored_positions(row)
            here = offset + np.arange(masked.size)
            offset += masked.size
            if span.phase == "score":
                given.append((here, np.asarray(request.prompt_ids, np.int64)[masked]))
                continue
            if params.temperature > 0:
                sampled.append(here)
                index_of_generated.append(first + masked)
                counts.append(masked.size)
                settings.append(
                    (params.temperature, params.top_p, params.top_k, params.min_p, params.seed, params.choice_index)
                )
            if request.stop_ids and first < request.min_tokens:
                banned.append((here[first + masked < request.min_tokens], np.asarray(sorted(request.stop_ids))))
            if params.has_adjustment and (change := _adjustment(span, row)) is not None:
                adjusted.append((here, change))

    def column(index: int, dtype: type[np.generic]) -> Tensor:
        return upload(np.repeat(np.asarray([entry[index] for entry in settings], dtype), counts), device)

    def spread(values: list[np.ndarray], dtype: type[np.generic]) -> Tensor:
        """Per adjusted row, the values of its tokens once for each of its positions."""
        tiled = [np.tile(value, rows.size) for value, (rows, _) in zip(values, adjusted, strict=True)]
        return upload(np.concatenate(tiled).astype(dtype, copy=False) if tiled else np.zeros(0, dtype), device)

    def picked(parts: list[IntArray]) -> Picked:
        index = _concatenate(parts)
        return Picked(index, upload(index, device))

    positions = upload(_concatenate(index_of_generated), device)
    return ScoredRows(
        sampled=picked(sampled),
        temperatures=column(0, np.float32),
        top_ps=column(1, np.float32),
        top_ks=column(2, np.int64),
        min_ps=column(3, np.float32),
        keys=noise_keys(column(4, np.int64), column(5, np.int64), positions) if settings else positions,
        has_top=any(entry[1] < 1 or entry[2] > 0 for entry in settings),
        has_min_p=any(entry[3] > 0 for entry in settings),
        banned=picked([np.repeat(rows, ids.size) for rows, ids in banned]),
        banned_ids=upload(_concatenate([np.tile(ids, rows.size) for rows, ids in banned]), device),
        adjusted=picked([np.repeat(rows, change.token_ids.size) for rows, change in adjusted]),
        adjusted_ids=spread([change.token_ids for _, change in adjusted], np.int64),
        adjusted_factors=spread([change.factors for _, change in adjusted], np.float32),
        adjusted_offsets=spread([change.offsets for _, change in adjusted], np.float32),
        given=picked([rows for rows, _ in given]),
        given_ids=upload(_concatenate([ids for _, ids in given]), device),
        num_top=max((span.request.num_top_logprobs for span in spans), default=0),
        statistics=frozenset().union(*(make_policy(span.request.decoder).statistics for span in spans)),
    )


def _adjustment(span: Span, row: int) -> Adjustment | None:
    """Penalties and bias of one row: what it holds decided is counted, draft or not."""
    request, state = span.request, span.rows[row]
    is_generated = state.decided.copy()
    is_generated[: max(0, len(request.prompt_ids) - span.block_start)] = False
    given_ids = np.asarray(request.prompt_ids + request.suffix_ids, np.int64)
    generated_ids = np.concatenate([span.generated_before, state.token_ids[is_generated]])
    return adjustment(request.sampling, given_ids, generated_ids)


def _concatenate(parts: list[IntArray]) -> IntArray:
    joined = np.concatenate(parts) if parts else np.zeros(0, np.int64)
    return joined.astype(np.int64, copy=False)
