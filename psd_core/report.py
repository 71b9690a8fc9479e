"""What is told after a forward: the state of its sequences as events. Pure: nothing is decided or changed here."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from psd_core.block import BlockState, IntArray
from psd_core.decide import Decision
from psd_core.events import CanvasEvent, FinishedEvent, PromptEvent, TokensEvent, TopEntries
from psd_core.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became known and final in one forward."""

    prompts: list[PromptEvent] = field(default_factory=list)
    tokens: list[TokensEvent] = field(default_factory=list)
    canvases: list[CanvasEvent] = field(default_factory=list)
    finished: list[FinishedEvent] = field(default_factory=list)


def tokens_event(sequence: Sequence, end: int | None) -> TokensEvent | None:
    """The newly final tokens of one sequence, at the granularity it asked for; None if there are none.

    end   tokens to return in all, once that is certain
    """
    stop = sequence.num_final
    if sequence.request.granularity == "block":
        # What lies before the active block; at the end of the canvas the active block itself is complete.
        stop = min(stop, sequence.block_start - sequence.num_prompt) if not sequence.state.is_complete else stop
    stop = min(stop, sequence.request.max_tokens) if end is None else end
    if stop <= sequence.num_reported:
        return None
    final = slice(sequence.num_prompt + sequence.num_reported, sequence.num_prompt + stop)
    return TokensEvent(
        sequence.request.request_id,
        tuple(sequence.token_ids[final].tolist()),
        tuple(sequence.logprobs[final].tolist()),
        _top_entries(sequence, final),
    )


def prompt_event(sequence: Sequence) -> PromptEvent:
    """The log-probabilities of a prompt that is scored to its end."""
    scored = slice(1, sequence.num_prompt)
    logprobs = tuple(sequence.logprobs[scored].tolist())
    return PromptEvent(sequence.request.request_id, logprobs, _top_entries(sequence, scored))


def _top_entries(sequence: Sequence, positions: slice) -> tuple[TopEntries, ...]:
    """The alternatives of some positions; empty if none were asked for."""
    if not sequence.request.num_top_logprobs:
        return ()
    ids, logprobs = sequence.top.token_ids[positions].tolist(), sequence.top.logprobs[positions].tolist()
    return tuple(tuple(zip(*pair, strict=True)) for pair in zip(ids, logprobs, strict=True))


def canvas_event(sequence: Sequence, decision: Decision) -> CanvasEvent:
    """The generated part of the block a forward worked on, as it stands after that forward."""
    span = decision.span
    accepted_row = decision.path[-1]
    latest = decision.candidates[accepted_row]
    first = max(span.block_start, sequence.num_prompt)
    offset = first - span.block_start
    token_ids: list[int | None] = []
    candidate_ids: list[int | None] = []
    confidences: list[float | None] = []
    depths: list[int | None] = []
    for position in range(first, span.block_start + span.rows[0].decided.size):
        if sequence.decided[position]:
            token_ids.append(int(sequence.token_ids[position]))
            candidate_ids.append(None)
            confidences.append(math.exp(sequence.logprobs[position]))
            depths.append(int(sequence.depths[position]))
        else:
            token_ids.append(None)
            column = position - span.block_start
            candidate_ids.append(None if latest is None else int(latest.token_ids[column]))
            confidences.append(None if latest is None else math.exp(latest.log_confidence[column]))
            depths.append(None)
    return CanvasEvent(
        request_id=sequence.request.request_id,
        start=first - sequence.num_prompt,
        token_ids=tuple(token_ids),
        candidate_ids=tuple(candidate_ids),
        confidences=tuple(confidences),
        depths=tuple(depths),
        rejected=tuple((_rejected(span.rows, accepted_row) - offset).tolist()),
        phase=span.phase,
        forwards=sequence.forwards,
        steps=sequence.denoising_steps,
        rows=span.token_ids.shape[0],
        drafted=span.num_drafted,
        accepted=decision.num_accepted,
        canvas_length=sequence.canvas_end - sequence.num_prompt,
    )


def _rejected(rows: tuple[BlockState, ...], accepted_row: int) -> IntArray:
    """Positions ([n], ascending) that some row had decided and the accepted one has not."""
    return np.flatnonzero(np.any([row.decided for row in rows], axis=0) & ~rows[accepted_row].decided)
