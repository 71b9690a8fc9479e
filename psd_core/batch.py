"""The tensors of one forward: all query tokens of all spans in one flat dimension.

Linear layers run over the flat dimension; attention runs per segment. T query tokens, M scored positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from psd_core.plan import Span, StepPlan
from psd_core.upload import upload

# Elements of the biases that one forward keeps, 64 MiB in float32, and of a piece of one that it does not keep.
MAX_BIAS_ELEMENTS: Final = 1 << 24


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
    context_stop: int  # cached positions 0 … context_stop - 1 are read; 0 without a cache
    causal_block: int | None  # positions see their own and earlier blocks of this length; None: everything
    open_start: int | None  # positions before it see what stands before them, others everything; None: all are others

    @property
    def num_tokens(self) -> int:
        return self.num_rows * self.width

    @property
    def rows_at_once(self) -> int:
        """Rows whose keys stand in one view. Without a cache they are a batch of rows, each with its own keys."""
        return 1 if self.slot_start is None else self.num_rows

    @property
    def bias_shape(self) -> tuple[int, int]:
        """(queries, keys) of what attends at once."""
        num_queries = self.rows_at_once * self.width
        return num_queries, self.context_stop + num_queries

    @property
    def stale(self) -> slice:
        """Cached copies of the window's own positions, which the rows' own keys replace."""
        stop = self.window_start + self.width
        return slice(min(self.window_start, self.context_stop), min(stop, self.context_stop))

    @property
    def hides_keys(self) -> bool:
        """Whether any query must not see some key."""
        first, last = self.window_start, max(self.window_start + self.width, self.context_stop) - 1
        is_ordered = self.causal_block is not None and last // self.causal_block > first // self.causal_block
        is_context = self.open_start is not None and first < min(self.open_start, last)
        return self.rows_at_once > 1 or self.stale.start < self.stale.stop or is_ordered or is_context


@dataclass(frozen=True, slots=True)
class LargeBias:
    """A bias too large to keep: every layer makes it anew, piece by piece.

    num_queries   of a piece
    """

    segment: Segment
    num_queries: int
    dtype: torch.dtype
    device: torch.device

    def pieces(self) -> Iterator[tuple[int, Tensor]]:
        """(first query, [n, keys]) of successive pieces."""
        end = self.segment.bias_shape[0]
        for first in range(0, end, self.num_queries):
            queries = range(first, min(first + self.num_queries, end))
            yield first, make_bias(self.segment, queries, self.dtype, self.device)


# What is added to attention scores, 0 or -inf, as large as the segment's `bias_shape`; None if nothing is hidden.
Bias = Tensor | LargeBias | None


@dataclass(frozen=True, slots=True)
class Batch:
    """Input of a model's forward."""

    token_ids: Tensor  # [T] int64
    positions: Tensor  # [T] int64, absolute
    segments: tuple[Segment, ...]
    biases: tuple[Bias, ...]  # per segment
    score_index: Tensor  # [M] int64: query tokens whose logits are wanted, by span, row, position


def build_batch(
    plan: StepPlan,
    is_shifted: bool,
    dtype: torch.dtype,
    device: torch.device,
    max_bias_elements: int = MAX_BIAS_ELEMENTS,
) -> Batch:
    """Pack the spans of `plan`.

    is_shifted          the logits of a position are those of the query token to its left
    dtype               the model's activation dtype, for the attention bias
    max_bias_elements   see `make_biases`
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
        segment = _segment(span, start)
        if segments and _joins(segments[-1], segment):
            segments[-1] = replace(segments[-1], num_rows=segments[-1].num_rows + num_rows)
        else:
            segments.append(segment)
        start += num_rows * width
    numbers = upload(np.concatenate([*token_ids, *positions, *score_index]), device)
    return Batch(
        token_ids=numbers[:start],
        positions=numbers[start : 2 * start],
        segments=tuple(segments),
        biases=make_biases(segments, dtype, device, max_bias_elements),
        score_index=numbers[2 * start :],
    )


def _segment(span: Span, start: int) -> Segment:
    num_rows, width = span.token_ids.shape
    window = span.window
    assert span.slot_start is not None or window.context_stop == 0, "nothing is cached, so nothing can be read"
    return Segment(
        start,
        num_rows,
        width,
        window.start,
        span.slot_start,
        window.context_stop,
        span.causal_block,
        span.open_start,
    )


def _joins(left: Segment, right: Segment) -> bool:
    """Neighbours without a cache that hide the same keys attend as one batch of rows."""
    alike = (left.width, left.causal_block, left.open_start) == (right.width, right.causal_block, right.open_start)
    return left.slot_start is None and right.slot_start is None and alike


def make_biases(
    segments: Sequence[Segment],
    dtype: torch.dtype,
    device: torch.device,
    max_elements: int = MAX_BIAS_ELEMENTS,
) -> tuple[Bias, ...]:
    """The bias of every segment. As many as have `max_elements` together are kept; a piece of another has no more.

    So a long context costs no memory that grows with its square. A piece is never less than one query's keys.
    """
    biases: list[Bias] = []
    room = max_elements
    for segment in segments:
        num_queries, num_keys = segment.bias_shape
        if not segment.hides_keys:
            biases.append(None)
        elif num_queries * num_keys <= room:
            room -= num_queries * num_keys
            biases.append(make_bias(segment, range(num_queries), dtype, device))
        else:
            biases.append(LargeBias(segment, max(1, max_elements // num_keys), dtype, device))
    return tuple(biases)


def make_bias(segment: Segment, queries: range, dtype: torch.dtype, device: torch.device) -> Tensor:
    """[len(queries), keys] of `dtype`: -inf where `hidden_keys` says so, 0 elsewhere."""
    width, context_stop = segment.width, segment.context_stop
    num_own, num_keys = segment.bias_shape
    bias = torch.zeros(len(queries), num_keys, dtype=dtype, device=device)
    bias[:, segment.stale] = -torch.inf
    query = torch.arange(queries.start, queries.stop, device=device)[:, None]
    own = torch.arange(num_own, device=device)
    if segment.rows_at_once > 1:
        bias[:, context_stop:].masked_fill_(query // width != own // width, -torch.inf)
    if segment.causal_block is None and segment.open_start is None:
        return bias
    here = segment.window_start + query % width
    keys = torch.cat([torch.arange(context_stop, device=device), segment.window_start + own % width])
    if segment.causal_block is not None:
        bias.masked_fill_(keys // segment.causal_block > here // segment.causal_block, -torch.inf)
    if segment.open_start is not None:
        bias.masked_fill_((keys > here) & (here < segment.open_start), -torch.inf)
    return bias


def hidden_keys(segment: Segment) -> npt.NDArray[np.bool_]:
    """`bias_shape`: which keys each query must not see. The slow twin of `make_bias`.

    Hidden are the other rows, the stale cached copies of the window's own positions, later blocks if `causal_block` is
    given, and, if `open_start` is, whatever stands behind a query before it. Keys are ordered as in `Segment`.
    """
    window_start, width, context_stop = segment.window_start, segment.width, segment.context_stop
    rows = np.repeat(np.arange(segment.rows_at_once), width)
    queries = np.tile(np.arange(window_start, window_start + width), segment.rows_at_once)
    context = np.arange(context_stop)
    keys = np.concatenate([context, queries])
    is_stale = (context >= window_start) & (context < window_start + width)
    hidden = np.empty(segment.bias_shape, np.bool_)
    hidden[:, :context_stop] = is_stale[None, :]
    hidden[:, context_stop:] = rows[:, None] != rows[None, :]
    if segment.causal_block is not None:
        hidden |= keys[None, :] // segment.causal_block > queries[:, None] // segment.causal_block
    if segment.open_start is not None:
        hidden |= (keys[None, :] > queries[:, None]) & (queries[:, None] < segment.open_start)
    return hidden
