"""The tensors of one forward: all query tokens of all spans in one flat dimension.

Linear layers run over the flat dimension; attention runs per segment. T query tokens, M scored positions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from psd_core.plan import Span, StepPlan
from psd_core.upload import upload


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of `num_rows` x `width` query tokens that attend alike.

    Without a cache (`slot_start` None) each row sees itself and nothing else. With one, the rows' own keys and values
    are written right behind the context they read, so that attention reads one contiguous view:

        slots   slot_start … + context_stop              cached context; the stale slots of the window are hidden
                … + context_stop + num_rows * width      the rows' own keys and values, each row seeing its own only

    The context is read once for all rows; nothing is copied or gathered. Rotary is applied before caching, so the
    order of keys does not matter. A refresh is the same with one row: what it writes stays as context for later.
    """

    start: int  # first query token
    num_rows: int
    width: int
    window_start: int  # absolute position of each row's first token
    slot_start: int | None
    context_stop: int  # cached positions 0 … context_stop - 1 are read
    causal_block: int | None  # positions see their own and earlier blocks of this length; None: everything
    open_start: int | None  # positions before it see what stands before them, others everything; None: all are others
    bias: (
        Tensor | None
    )  # [num_rows * width, context_stop + num_rows * width], 0 or -inf; without a cache [width, width]

    @property
    def num_tokens(self) -> int:
        return self.num_rows * self.width


@dataclass(frozen=True, slots=True)
class Batch:
    """Input of a model's forward."""

    token_ids: Tensor  # [T] int64
    positions: Tensor  # [T] int64, absolute
    segments: tuple[Segment, ...]
    score_index: Tensor  # [M] int64: query tokens whose logits are wanted, by span, row, position


def build_batch(plan: StepPlan, is_shifted: bool, dtype: torch.dtype, device: torch.device) -> Batch:
    """Pack the spans of `plan`.

    is_shifted   the logits of a position are those of the query token to its left
    dtype        the model's activation dtype, for the attention bias
    """
    token_ids: list[np.ndarray] = []
    positions: list[np.ndarray] = []
    score_index: list[np.ndarray] = []
    segments: list[Segment] = []
    start = 0
    for span in plan.spans:
        num_rows, width = span.token_ids.shape
        first = span.window.start
        token_ids.append(span.token_ids.reshape(-1))
        positions.append(np.tile(np.arange(first, first + width, dtype=np.int64), num_rows))
        for row in range(num_rows):
            scored = span.scored_positions(row)
            score_index.append(start + row * width + span.block_start - first + scored - int(is_shifted))
        segment = _segment(span, start, dtype, device)
        if segments and _joins(segments[-1], segment):
            segments[-1] = replace(segments[-1], num_rows=segments[-1].num_rows + num_rows)
        else:
            segments.append(segment)
        start += num_rows * width
    numbers = upload(np.concatenate([*token_ids, *positions, *score_index]), device)
    return Batch(numbers[:start], numbers[start : 2 * start], tuple(segments), numbers[2 * start :])


def _segment(span: Span, start: int, dtype: torch.dtype, device: torch.device) -> Segment:
    num_rows, width = span.token_ids.shape
    window = span.window
    # Without cached context the rows are batched, so that each of them sees only itself anyway.
    rows_apart, context_stop = (1, 0) if span.slot_start is None else (num_rows, window.context_stop)
    causality = span.causal_block, span.open_start
    bias = attention_bias(rows_apart, width, window.start, context_stop, *causality, dtype, device)
    return Segment(
        start,
        num_rows,
        width,
        window.start,
        span.slot_start,
        window.context_stop,
        span.causal_block,
        span.open_start,
        bias,
    )


def attention_bias(
    num_rows: int,
    width: int,
    window_start: int,
    context_stop: int,
    causal_block: int | None,
    open_start: int | None,
    dtype: torch.dtype,
    device: torch.device,
) -> Tensor | None:
    """What `hidden_keys` says as something to add to attention scores: 0 or -inf; None if nothing is hidden."""
    num_tokens = num_rows * width
    is_ordered = causal_block is not None and not _sees_all(width, window_start, context_stop, causal_block)
    if is_ordered or open_start is not None:
        plain = hidden_keys(num_rows, width, window_start, context_stop, causal_block, open_start)
        if not plain.any():
            return None
        hidden = upload(plain, device)
        return torch.zeros(hidden.shape, dtype=dtype, device=device).masked_fill_(hidden, -torch.inf)
    stale = slice(min(window_start, context_stop), min(window_start + width, context_stop))
    if num_rows == 1 and stale.start == stale.stop:
        return None
    bias = torch.zeros(num_tokens, context_stop + num_tokens, dtype=dtype, device=device)
    bias[:, stale] = -torch.inf
    if num_rows > 1:
        own = bias[:, context_stop:].view(num_rows, width, num_rows, width)
        own.fill_(-torch.inf)
        own.diagonal(dim1=0, dim2=2).zero_()
    return bias


def _sees_all(width: int, window_start: int, context_stop: int, causal_block: int) -> bool:
    """Whether the window lies in one block and all context in it or before: then causality hides nothing."""
    block = window_start // causal_block
    last = max(window_start + width, context_stop) - 1
    return last // causal_block == block


def hidden_keys(
    num_rows: int, width: int, window_start: int, context_stop: int, causal_block: int | None, open_start: int | None
) -> npt.NDArray[np.bool_]:
    """[num_rows * width, context_stop + num_rows * width]: which keys each query must not see, plainly.

    Hidden are the other rows, the stale cached copies of the window's own positions, later blocks if `causal_block` is
    given, and, if `open_start` is, whatever stands behind a query before it. Keys are ordered as in `Segment`.
    """
    row_positions = np.arange(window_start, window_start + width)
    rows = np.repeat(np.arange(num_rows), width)
    queries = np.tile(row_positions, num_rows)
    context = np.arange(context_stop)
    keys = np.concatenate([context, queries])
    is_stale = (context >= window_start) & (context < window_start + width)
    hidden = np.empty((queries.size, keys.size), np.bool_)
    hidden[:, :context_stop] = is_stale[None, :]
    hidden[:, context_stop:] = rows[:, None] != rows[None, :]
    if causal_block is not None:
        hidden |= keys[None, :] // causal_block > queries[:, None] // causal_block
    if open_start is not None:
        hidden |= (keys[None, :] > queries[:, None]) & (queries[:, None] < open_start)
    return hidden


def _joins(left: Segment, right: Segment) -> bool:
    """Neighbours without a cache, of one width and with the same bias, attend as one batch of rows."""
    alike = (left.width, left.causal_block, left.open_start) == (right.width, right.causal_block, right.open_start)
    return left.slot_start is None and right.slot_start is None and alike
