"""A denoising forward at one of a few shapes: the spans of a plan with padding between them, as one vector of numbers.

G groups of Q query tokens. A group is what reads one context: all rows of a span with a cache, or one row of a span
without. Its keys are C slots of the cache, then its own Q tokens. Padding is a row of its own, which nobody sees.

    numbers   token ids | positions | rows | sights   [G, Q] each
              scored tokens                           [G * Q], the first M count
              first slot | context stop | stale start | stale stop   [G] each

A query sees a key if it is of its own row or of the context, and if the key's position is below the query's *sight*.
Knows nothing of tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from psd_core.block import IntArray
from psd_core.plan import Span, StepPlan

MAX_TOKENS: Final = 2048  # of a padded forward; in a longer one the launching of kernels hardly shows
MAX_KEYS: Final = 2**16  # of all groups together; each layer copies them
MAX_PADDING: Final = 2  # padded tokens per token that is wanted
FREE_TOKENS: Final = 128  # so many take no longer than one: the weights have to be read anyway
PADDING_ROW: Final = -1
UNLIMITED: Final = 2**62  # the sight of a query that sees everything


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a padded forward. `num_context` is 0 if nothing is cached."""

    num_groups: int
    num_queries: int  # per group
    num_context: int  # cached keys per group

    @property
    def num_tokens(self) -> int:
        """Query tokens, padding included."""
        return self.num_groups * self.num_queries

    @property
    def num_keys(self) -> int:
        """Keys that attention reads, padding included."""
        return self.num_groups * (self.num_context + self.num_queries)

    @property
    def num_numbers(self) -> int:
        """Length of the vector."""
        return 5 * self.num_tokens + 4 * self.num_groups


def shape_of(plan: StepPlan) -> Shape | None:
    """The shape that holds the plan; None if it does anything but denoise, is large, or would be mostly padding."""
    if any(span.phase != "denoise" for span in plan.spans):
        return None
    groups = [_groups(span) for span in plan.spans]
    shape = Shape(
        _rounded_up(sum(count for count, _, _ in groups), 1, 2),
        _rounded_up(max(size for _, size, _ in groups), 8, 4),
        _rounded_up(max(context for _, _, context in groups), 8, 4),
    )
    num_wanted = sum(span.num_tokens for span in plan.spans)
    most = min(MAX_TOKENS, max(FREE_TOKENS, MAX_PADDING * num_wanted))
    return shape if shape.num_tokens <= most and shape.num_keys <= MAX_KEYS else None


def pack(plan: StepPlan, shape: Shape, is_shifted: bool, numbers: IntArray) -> int:
    """Write a plan of that shape into `numbers` ([shape.num_numbers]); the number of scored tokens, M.

    is_shifted   the logits of a position are those of the query token to its left
    """
    num_tokens, grid = shape.num_tokens, (shape.num_groups, shape.num_queries)
    token_ids, positions, rows, sights = numbers[: 4 * num_tokens].reshape(4, *grid)
    scored = numbers[4 * num_tokens : 5 * num_tokens]
    contexts = numbers[5 * num_tokens :].reshape(4, shape.num_groups)
    numbers[:] = 0
    rows[:], sights[:] = PADDING_ROW, 1  # padding has position 0 and so sees itself: nothing of it is NaN
    group = num_scored = 0
    for span in plan.spans:
        count, size, context_stop = _groups(span)
        here = slice(group, group + count), slice(size)
        num_rows, width = span.token_ids.shape
        row_positions = np.arange(span.window.start, span.window.start + width)
        token_ids[here] = span.token_ids.reshape(count, size)
        positions[here] = np.tile(row_positions, size // width)
        sights[here] = np.tile(_sights(span, row_positions), size // width)
        rows[here] = np.repeat(np.arange(size // width), width)
        if span.slot_start is not None:
            contexts[:, group] = span.slot_start, context_stop, span.window.start, span.window.start + width
        for row in range(num_rows):
            first = group * shape.num_queries + row * (width if count == 1 else shape.num_queries)
            wanted = first + span.block_start - span.window.start + span.scored_positions(row) - int(is_shifted)
            scored[num_scored : num_scored + wanted.size] = wanted
            num_scored += wanted.size
        group += count
    return num_scored


def _groups(span: Span) -> tuple[int, int, int]:
    """(groups, tokens of each, cached keys that they read) of a span."""
    num_rows, width = span.token_ids.shape
    return (num_rows, width, 0) if span.slot_start is None else (1, num_rows * width, span.window.context_stop)


def _sights(span: Span, positions: IntArray) -> IntArray:
    """Where each query's view ends, [n]: as `batch.hidden_keys` has it, for keys of the query's row and context."""
    sights = np.full(positions.size, UNLIMITED, np.int64)
    if span.causal_block is not None:
        sights = (positions // span.causal_block + 1) * span.causal_block
    if span.open_start is not None:
        sights = np.where(positions < span.open_start, np.minimum(sights, positions + 1), sights)
    return sights


def _rounded_up(size: int, least: int, parts: int) -> int:
    """The next multiple of `least`, or of a fraction of the power of two below `size`: 1 / `parts` of it.

    So what is rounded up grows by 1 / parts at most, and sizes are few. All are powers of two but `size`.
    """
    step = max(least, (1 << (max(1, size - 1).bit_length() - 1)) // parts)
    return -(-size // step) * step
