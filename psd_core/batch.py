"""The tensors of one forward: all query tokens of all spans in one flat dimension.

Linear layers run over the flat dimension; attention runs per segment. T query tokens, M scored positions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from psd_core.plan import Span, StepPlan


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of `num_rows` x `width` query tokens that attend alike.

    Without a cache (`slot_start` None) each row sees itself and nothing else. A refresh is one such row whose
    keys and values are also written to slots `slot_start` … `slot_start` + width - 1. A denoise with a cache reads

        slots   slot_start … + canvas_stop   the context, the window's own stale slots masked out by `bias`
                … + num_rows * width         scratch: the rows' own keys and values, each row seeing its own only

    as one contiguous view, so the context is read once for all rows and nothing is copied or gathered. Rotary is
    applied before caching, so the order of keys does not matter.
    """

    start: int  # first query token
    num_rows: int
    width: int
    slot_start: int | None
    canvas_stop: int
    bias: Tensor | None  # [num_rows * width, canvas_stop + num_rows * width], 0 or -inf; None: nothing is masked

    @property
    def num_tokens(self) -> int:
        return self.num_rows * self.width

    @property
    def reads_cache(self) -> bool:
        return self.bias is not None


@dataclass(frozen=True, slots=True)
class Batch:
    """Input of a model's forward."""

    token_ids: Tensor  # [T] int64
    positions: Tensor  # [T] int64, absolute
    segments: tuple[Segment, ...]
    score_index: Tensor  # [M] int64: query tokens whose logits are wanted, by span, row, position


def build_batch(plan: StepPlan, dtype: torch.dtype, device: torch.device) -> Batch:
    """Pack the spans of `plan`. `dtype` is the model's activation dtype, for the attention bias."""
    token_ids: list[np.ndarray] = []
    positions: list[np.ndarray] = []
    score_index: list[np.ndarray] = []
    segments: list[Segment] = []
    start = 0
    for span in plan.spans:
        num_rows, width = span.token_ids.shape
        token_ids.append(span.token_ids.reshape(-1))
        positions.append(np.tile(np.arange(span.window_start, span.window_start + width, dtype=np.int64), num_rows))
        for row in range(num_rows):
            masked = np.flatnonzero(~span.rows[row].decided)
            score_index.append(start + row * width + (span.block_start - span.window_start) + masked)
        segment = _segment(span, start, dtype, device)
        if segments and _joins(segments[-1], segment):
            segments[-1] = _join(segments[-1], segment)
        else:
            segments.append(segment)
        start += num_rows * width
    return Batch(
        token_ids=torch.from_numpy(np.concatenate(token_ids)).to(device),
        positions=torch.from_numpy(np.concatenate(positions)).to(device),
        segments=tuple(segments),
        score_index=torch.from_numpy(np.concatenate(score_index)).to(device),
    )


def _segment(span: Span, start: int, dtype: torch.dtype, device: torch.device) -> Segment:
    num_rows, width = span.token_ids.shape
    bias = None
    if span.phase == "denoise" and span.slot_start is not None:
        bias = _shared_context_bias(span.canvas_stop, span.window_start, num_rows, width, dtype, device)
    return Segment(start, num_rows, width, span.slot_start, span.canvas_stop, bias)


def _shared_context_bias(
    canvas_stop: int, window_start: int, num_rows: int, width: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """[num_rows * width, canvas_stop + num_rows * width]: context without the window, own row without the others."""
    num_tokens = num_rows * width
    hidden = np.ones((num_tokens, canvas_stop + num_tokens), np.bool_)
    hidden[:, :canvas_stop] = False
    hidden[:, window_start : window_start + width] = True
    for row in range(num_rows):
        own = slice(row * width, (row + 1) * width)
        hidden[own, canvas_stop + row * width : canvas_stop + (row + 1) * width] = False
    bias = torch.zeros(hidden.shape, dtype=dtype, device=device)
    return bias.masked_fill_(torch.from_numpy(hidden).to(device), -torch.inf)


def _joins(left: Segment, right: Segment) -> bool:
    """Neighbours without a cache and of one width attend as one batch of rows."""
    return left.slot_start is None and right.slot_start is None and left.width == right.width


def _join(left: Segment, right: Segment) -> Segment:
    return Segment(left.start, left.num_rows + right.num_rows, left.width, None, left.canvas_stop, bias=None)
