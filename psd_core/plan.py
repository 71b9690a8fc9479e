"""What one forward will compute: a span per scheduled sequence. Decisions only, no tensors."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from psd_core.block import BlockState, Candidates, IntArray
from psd_core.editing import Editor, make_editor
from psd_core.events import SpanPhase
from psd_core.kvcache.modes import Window, denoise_window, refresh_window
from psd_core.request import Request
from psd_core.sequence import Sequence
from psd_core.shares import Share
from psd_core.speculation import branch_out, draft


@dataclass(frozen=True, slots=True, eq=False)
class Span:
    """What one sequence contributes to one forward.

    A complete row is not computed unless tokens are edited: it needs no logits, and its parent judges it. Chains are
    nested, sets and branches never complete, so only the last row can be complete; `token_ids` then has one row less
    than `rows`. All positions are absolute.
    """

    request: Request
    phase: SpanPhase  # refresh: one row, writes the cache; denoise: the block's state and its drafts; score: see below
    rows: tuple[BlockState, ...]  # the sequence's own state, then its drafts
    token_ids: IntArray  # [R, W], R = rows to compute, W = window width
    window: Window  # columns of `token_ids`, and the cached positions read besides
    block_start: int
    slot_start: int | None  # slot of position 0; None: nothing is cached
    causal_block: int | None  # positions attend to their own and earlier blocks of this length; None: to everything
    # Positions before it attend to what stands before them, from it on to everything; None: no such difference.
    open_start: int | None = None
    is_first: bool = False  # the sequence's first span
    explores: bool = False  # carries drafts only to learn how often such drafts hold
    is_partial: bool = False  # the beginning of a prompt, written to the cache; scores and decides nothing
    # Tokens of the answer in front of the block; empty unless penalties count them.
    generated_before: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))

    def scored_positions(self, row: int) -> IntArray:
        """Block positions ([n]) of a row whose candidates are wanted: undecided ones, and those that may change."""
        if self.is_partial:
            return np.zeros(0, np.int64)
        state = self.rows[row]
        if self.phase == "score" or self.request.decoder.edit_threshold is None:
            return np.flatnonzero(~state.decided)
        return np.arange(max(0, len(self.request.prompt_ids) - self.block_start), state.decided.size)

    @property
    def editor(self) -> Editor | None:
        """How the request edits the block's tokens, if it does."""
        return make_editor(self.request, self.block_start)

    @property
    def num_tokens(self) -> int:
        """Query tokens of the forward."""
        return int(self.token_ids.size)

    @property
    def num_drafted(self) -> int:
        """Positions that the largest draft filled beyond the sequence's own state; none when scoring."""
        return 0 if self.phase == "score" else self.rows[0].num_masked - min(row.num_masked for row in self.rows)


@dataclass(frozen=True, slots=True, eq=False)
class Portion:
    """Some layers of a refresh that is spread over several forwards, so that nobody waits for all of it at once.

    It is computed behind the forward's own spans: its tokens attend to each other only, and nothing else reads the keys
    and values that it writes. Its hidden states are kept until its next portion.
    """

    span: Span
    layers: range
    is_last: bool  # behind these layers the span is scored and judged as any other


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The spans that share one forward, and portions of others; empty if nothing is to be done."""

    spans: tuple[Span, ...]
    portions: tuple[Portion, ...] = ()
    paused: frozenset[str] = frozenset()  # ids of requests whose refresh has begun and stands still in this forward

    @property
    def is_empty(self) -> bool:
        return not self.spans and not self.portions

    @property
    def completed(self) -> tuple[Span, ...]:
        """The spans that will have passed all layers after this forward."""
        return (*self.spans, *(portion.span for portion in self.portions if portion.is_last))


def next_window(sequence: Sequence, is_shifted: bool) -> tuple[SpanPhase, Window]:
    """What the next span of `sequence` computes."""
    cache, block_stop = sequence.request.decoder.cache, sequence.block_stop
    if sequence.candidates is None:
        window = refresh_window(cache, sequence.num_cached, block_stop, sequence.canvas_stop)
        if window is not None:
            return "refresh", window
    return "denoise", denoise_window(cache, sequence.block_start, block_stop, sequence.canvas_stop, is_shifted)


def make_span(share: Share, mask_id: int, is_shifted: bool) -> Span:
    """The next span of a sequence, with at most as many drafts as its share has."""
    if share.is_partial:
        return _prompt_span(share)
    sequence, depth = share.sequence, share.depth
    rows = [sequence.state]
    if sequence.candidates is not None:
        rows += _drafted_rows(sequence, sequence.candidates, depth)
    phase, window = next_window(sequence, is_shifted)
    is_judged_by_parent = rows[-1].is_complete and sequence.request.decoder.edit_threshold is None
    computed = rows[:-1] if is_judged_by_parent else rows
    return Span(
        request=sequence.request,
        phase=phase,
        rows=tuple(rows),
        token_ids=sequence.row_ids(computed, window.start, window.stop, mask_id),
        window=window,
        block_start=sequence.block_start,
        slot_start=sequence.slot_start,
        causal_block=sequence.block_length if sequence.attention == "block-causal" else None,
        open_start=sequence.block_start if sequence.attention == "context-causal" else None,
        is_first=not sequence.has_run,
        explores=share.explores and depth == share.most,
        generated_before=sequence.counted_before_block,
    )


def _drafted_rows(sequence: Sequence, stale: Candidates, depth: int) -> list[BlockState]:
    """The rows beside the sequence's own: its drafts, or its branches."""
    state, policy, decoder = sequence.state, sequence.policy, sequence.request.decoder
    if decoder.policy == "lopa":
        return branch_out(state, stale, policy, depth)
    return draft(state, stale, policy, depth, decoder.draft_increment)


def _prompt_span(share: Share) -> Span:
    """A span that only writes the beginning of a prompt to the cache."""
    sequence, window = share.sequence, share.window
    return Span(
        request=sequence.request,
        phase="refresh",
        rows=(sequence.state,),
        token_ids=sequence.token_ids[None, window.start : window.stop].copy(),
        window=window,
        block_start=sequence.block_start,
        slot_start=sequence.slot_start,
        causal_block=sequence.block_length if sequence.has_grid else None,
        open_start=sequence.block_start if sequence.attention == "context-causal" else None,
        is_first=not sequence.has_run,
        is_partial=True,
    )


def scoring_window(sequence: Sequence, is_shifted: bool) -> Window:
    """What the rows of the next scoring span compute: no more than the logits of the next prompt tokens depend on.

    A block-causal model sees nothing behind a token's own block, and whatever lies before it can be cached. Any other
    sees masks up to the prompt's end, or `canvas_blocks` of them behind the block; blocks count from the beginning.
    """
    stop = sequence.num_prompt
    if sequence.scores_at_once:
        return Window(0, stop, 0)
    start = _scored_block(sequence)
    look_ahead = 0 if sequence.has_grid else sequence.request.decoder.canvas_blocks
    if look_ahead is not None:
        stop = min(stop, start + (1 + look_ahead) * sequence.block_length)
    if not scores_with_cache(sequence):
        return Window(0, stop, 0)
    first = max(0, start - int(is_shifted))
    return Window(first, stop, first)


def scoring_limit(sequence: Sequence, window: Window, num_slots: int) -> int:
    """Rows that the next scoring span may have: one per token with this window, as far as `num_slots` hold them.

    With a cache there is one more, in front: the tokens as they are, whose keys and values are the context of what
    follows. It comes first, so its keys are written where they belong, and those of the other rows behind it.
    """
    if sequence.scores_at_once:
        return 1
    stop = sequence.num_prompt
    if sequence.has_grid or sequence.request.decoder.canvas_blocks is not None:
        stop = min(stop, _scored_block(sequence) + sequence.block_length)
    num_rows = stop - sequence.num_scored
    if not scores_with_cache(sequence):
        return num_rows
    return min(1 + num_rows, (num_slots - window.context_stop) // (window.stop - window.start))


def make_scoring_span(sequence: Sequence, num_rows: int, mask_id: int, is_shifted: bool) -> Span:
    """A span that scores the next prompt tokens, one row per token; `num_rows` is within `scoring_limit`.

    The row of position i shows the prompt up to i - 1 and masks behind. As a block state it has everything decided but
    position i: what is "decided" behind it is the mask itself. A context-causal model sees no token of a prompt from
    the ones before it, so one row, the prompt itself, scores all tokens.
    """
    prompt = np.asarray(sequence.request.prompt_ids, np.int64)
    window = scoring_window(sequence, is_shifted)
    if sequence.scores_at_once:
        rows = [BlockState(prompt, np.arange(prompt.size) < sequence.num_scored)]
        num_rows = 1
    else:
        rows = [BlockState(prompt, np.ones(prompt.size, np.bool_))] if scores_with_cache(sequence) else []
    for position in range(sequence.num_scored, sequence.num_scored + num_rows - len(rows)):
        is_before = np.arange(prompt.size) < position
        rows.append(BlockState(np.where(is_before, prompt, mask_id), np.arange(prompt.size) != position))
    return Span(
        request=sequence.request,
        phase="score",
        rows=tuple(rows),
        token_ids=np.stack([row.token_ids[window.start : window.stop] for row in rows]),
        window=window,
        block_start=0,
        slot_start=sequence.slot_start if scores_with_cache(sequence) else None,
        causal_block=sequence.block_length if sequence.has_grid else None,
        open_start=sequence.num_prompt if sequence.scores_at_once else None,
        is_first=not sequence.has_run,
    )


def scores_with_cache(sequence: Sequence) -> bool:
    """Whether the finished blocks of a prompt are cached while it is scored."""
    return sequence.has_grid and sequence.request.decoder.cache == "causal"


def _scored_block(sequence: Sequence) -> int:
    """Start of the block that holds the next prompt token to score."""
    return sequence.num_scored // sequence.block_length * sequence.block_length
