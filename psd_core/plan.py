"""What one forward will compute: a span per scheduled sequence. Decisions only, no tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from psd_core.block import BlockState, IntArray
from psd_core.kvcache.modes import denoise_window, needs_refresh
from psd_core.request import Request
from psd_core.sequence import Sequence
from psd_core.speculation import draft_chain

SpanPhase = Literal["refresh", "denoise"]


@dataclass(frozen=True, slots=True, eq=False)
class Span:
    """What one sequence contributes to one forward.

    A complete row is never computed: it needs no logits, and its parent judges it. Rows are nested, so only the
    last one can be complete; `token_ids` then has one row less than `rows`.
    """

    request: Request
    phase: SpanPhase  # refresh: one row over the visible canvas, writes the cache; denoise: score the block
    rows: tuple[BlockState, ...]  # the sequence's own state, then its drafts
    token_ids: IntArray  # [R, W], R = rows to compute, W = window width
    window_start: int  # absolute position of the first column
    block_start: int  # absolute position of the active block
    canvas_stop: int  # the model sees positions 0 … canvas_stop - 1
    slot_start: int | None  # slot of position 0; None: the window is the whole visible canvas, nothing is cached

    @property
    def num_tokens(self) -> int:
        """Query tokens of the forward."""
        return int(self.token_ids.size)

    @property
    def num_drafted(self) -> int:
        """Positions that the deepest draft filled beyond the sequence's own state."""
        return self.rows[0].num_masked - self.rows[-1].num_masked


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The spans that share one forward; empty if nothing is to be done."""

    spans: tuple[Span, ...]


def is_refresh(sequence: Sequence) -> bool:
    """Whether the next span of `sequence` recomputes its cached context."""
    return sequence.candidates is None and needs_refresh(sequence.request.decoder.cache)


def draft_limit(sequence: Sequence) -> int:
    """Drafts the next span may carry: none before the block has candidates."""
    return 0 if sequence.candidates is None else sequence.request.decoder.draft_depth


def num_query_tokens(sequence: Sequence, depth: int) -> int:
    """Upper bound of the query tokens of the next span with `depth` drafts."""
    if is_refresh(sequence):
        return sequence.canvas_stop
    start = sequence.num_prompt + sequence.block_start
    window = denoise_window(sequence.request.decoder.cache, start, start + sequence.block_length, sequence.canvas_stop)
    return (1 + depth) * (window.stop - window.start)


def make_span(sequence: Sequence, depth: int, mask_id: int) -> Span:
    """The next span of `sequence`, with at most `depth` drafts."""
    decoder = sequence.request.decoder
    block_start = sequence.num_prompt + sequence.block_start
    rows = [sequence.state]
    if sequence.candidates is not None:
        rows += draft_chain(sequence.state, sequence.candidates, sequence.policy, depth, decoder.draft_increment)
    if is_refresh(sequence):
        phase: SpanPhase = "refresh"
        start, stop = 0, sequence.canvas_stop
    else:
        phase = "denoise"
        window = denoise_window(decoder.cache, block_start, block_start + sequence.block_length, sequence.canvas_stop)
        start, stop = window.start, window.stop
    computed = rows[:-1] if rows[-1].is_complete else rows
    return Span(
        request=sequence.request,
        phase=phase,
        rows=tuple(rows),
        token_ids=sequence.row_ids(computed, start, stop, mask_id),
        window_start=start,
        block_start=block_start,
        canvas_stop=sequence.canvas_stop,
        slot_start=sequence.slot_start,
    )
