"""What one forward will compute: a span per scheduled sequence. Decisions only, no tensors."""

from __future__ import annotations

from dataclasses import dataclass

from psd_core.block import BlockState, IntArray
from psd_core.events import SpanPhase
from psd_core.kvcache.modes import Window, denoise_window, refresh_window
from psd_core.request import Request
from psd_core.sequence import Sequence
from psd_core.speculation import draft_chain


@dataclass(frozen=True, slots=True, eq=False)
class Span:
    """What one sequence contributes to one forward.

    A complete row is never computed: it needs no logits, and its parent judges it. Rows are nested, so only the
    last one can be complete; `token_ids` then has one row less than `rows`. All positions are absolute.
    """

    request: Request
    phase: SpanPhase  # refresh: one row, writes the cache; denoise: the block's state and its drafts
    rows: tuple[BlockState, ...]  # the sequence's own state, then its drafts
    token_ids: IntArray  # [R, W], R = rows to compute, W = window width
    window: Window  # columns of `token_ids`, and the cached positions read besides
    block_start: int
    slot_start: int | None  # slot of position 0; None: nothing is cached
    causal_block: int | None  # positions attend to their own and earlier blocks of this length; None: to everything
    is_first: bool = False  # the sequence's first span

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


def next_window(sequence: Sequence, is_shifted: bool) -> tuple[SpanPhase, Window]:
    """What the next span of `sequence` computes."""
    cache, block_stop = sequence.request.decoder.cache, sequence.block_stop
    if sequence.candidates is None:
        window = refresh_window(cache, sequence.num_cached, block_stop, sequence.canvas_stop)
        if window is not None:
            return "refresh", window
    return "denoise", denoise_window(cache, sequence.block_start, block_stop, sequence.canvas_stop, is_shifted)


def draft_limit(sequence: Sequence) -> int:
    """Drafts the next span may carry: none before the block has candidates."""
    return 0 if sequence.candidates is None else sequence.request.decoder.draft_depth


def make_span(sequence: Sequence, depth: int, mask_id: int, is_shifted: bool) -> Span:
    """The next span of `sequence`, with at most `depth` drafts."""
    rows = [sequence.state]
    if sequence.candidates is not None:
        increment = sequence.request.decoder.draft_increment
        rows += draft_chain(sequence.state, sequence.candidates, sequence.policy, depth, increment)
    phase, window = next_window(sequence, is_shifted)
    computed = rows[:-1] if rows[-1].is_complete else rows
    return Span(
        request=sequence.request,
        phase=phase,
        rows=tuple(rows),
        token_ids=sequence.row_ids(computed, window.start, window.stop, mask_id),
        window=window,
        block_start=sequence.block_start,
        slot_start=sequence.slot_start,
        causal_block=sequence.block_length if sequence.is_block_causal else None,
        is_first=sequence.forwards == 0,
    )
