"""Who runs in the next forward, and what a forward changes. The only writer of sequences.

Continuous batching at the level of forwards: a request joins as soon as a place and its cache slots are free, and
leaves at the forward after its end or cancellation. Refreshes and denoising spans share forwards. A request gets all
the cache it will ever need when it starts, so whatever runs can always finish: nothing is preempted.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from psd_core.admission import num_slots
from psd_core.config import EngineConfig
from psd_core.decide import Decision
from psd_core.errors import RequestError
from psd_core.events import CanvasEvent, EngineFinishReason, FinishedEvent, Occupancy, TokensEvent
from psd_core.kvcache.slots import SlotAllocator
from psd_core.models.spec import ModelSpec
from psd_core.plan import StepPlan, draft_limit, make_span, next_window
from psd_core.request import Request
from psd_core.sequence import Sequence


@dataclass(slots=True)
class _Share:
    """What one sequence gets of a forward while it is being filled."""

    sequence: Sequence
    width: int
    depth: int  # drafts it has
    most: int  # drafts it may have


class Scheduler:
    """Waiting and running sequences and their cache slots. Owns every `Sequence`."""

    def __init__(self, config: EngineConfig, num_cache_slots: int, spec: ModelSpec) -> None:
        self._config = config
        self._mask_id = spec.mask_id
        self._is_shifted = spec.is_shifted
        self._is_block_causal = spec.block_length is not None
        self._waiting: deque[Sequence] = deque()
        self._running: dict[str, Sequence] = {}
        self._slots = SlotAllocator(num_cache_slots)
        self._step = 0

    def add(self, request: Request, now_seconds: float) -> None:
        """Queue an admissible request. RequestError if its id is already open."""
        if request.request_id in self._running or any(
            sequence.request.request_id == request.request_id for sequence in self._waiting
        ):
            raise RequestError("request_id", f"request id {request.request_id!r} is already in use")
        self._waiting.append(Sequence(request, self._is_block_causal, now_seconds))

    def cancel(self, request_ids: Iterable[str], now_seconds: float) -> list[FinishedEvent]:
        """End these requests now, whatever state they are in; unknown ids are ignored."""
        events = []
        for request_id in request_ids:
            sequence = self._running.get(request_id) or next(
                (waiting for waiting in self._waiting if waiting.request.request_id == request_id), None
            )
            if sequence is not None:
                events.append(self._finish(sequence, "cancelled", None, sequence.num_reported, now_seconds))
        return events

    def has_work(self) -> bool:
        """Whether any sequence waits or runs."""
        return bool(self._waiting or self._running)

    @property
    def occupancy(self) -> Occupancy:
        total = self._slots.num_slots
        return Occupancy(
            running=len(self._running),
            waiting=len(self._waiting),
            cache_ratio=self._slots.num_used / total if total else 0.0,
        )

    def plan(self, budget: int) -> StepPlan:
        """Start what can start, then fill the next forward with up to `budget` query tokens. Changes no sequence.

        Whoever waited longest comes first and always gets its span, alone if it is larger than the budget; so every
        running sequence is served within as many forwards as there are running sequences. Where room is short,
        drafts are shed before sequences are, but only if that cannot change the tokens (`exact`).
        """
        self._start_waiting()
        return StepPlan(
            tuple(
                make_span(share.sequence, share.depth, self._mask_id, self._is_shifted)
                for share in self._shares(budget)
            )
        )

    def _shares(self, budget: int) -> list[_Share]:
        """Who takes part and with how many drafts: everybody's own state first, then drafts level by level."""
        shares: list[_Share] = []
        # sorted() is stable: among equals the longest-running comes first.
        for sequence in sorted(self._running.values(), key=lambda sequence: sequence.last_scheduled_step):
            most = draft_limit(sequence)
            depth = 0 if sequence.request.decoder.acceptance == "exact" else most
            _, window = next_window(sequence, self._is_shifted)
            width = window.stop - window.start
            if shares and (1 + depth) * width > budget:
                continue
            shares.append(_Share(sequence, width, depth, most))
            budget -= (1 + depth) * width
        growing = [share for share in shares if share.depth < share.most]
        while growing:
            for share in growing:
                if share.width <= budget:
                    share.depth += 1
                    budget -= share.width
                else:
                    share.most = share.depth
            growing = [share for share in growing if share.depth < share.most]
        return shares

    def apply(
        self, decisions: Iterable[Decision], started_seconds: float, now_seconds: float
    ) -> tuple[list[TokensEvent], list[CanvasEvent], list[FinishedEvent]]:
        """Move every sequence of a forward on, and say what became final. Seconds: when the forward began, ended."""
        tokens: list[TokensEvent] = []
        canvases: list[CanvasEvent] = []
        finished: list[FinishedEvent] = []
        self._step += 1
        for decision in decisions:
            sequence = self._running[decision.span.request.request_id]
            sequence.last_scheduled_step = self._step
            _count(sequence, decision, started_seconds, now_seconds)
            sequence.advance(decision.span.rows, decision.candidates, decision.path)
            if sequence.request.watch:
                canvases.append(_canvas_event(sequence, decision))
            end = sequence.find_end()
            tokens += _report_tokens(sequence, end[0] if end else None)
            if end:
                num_tokens, stop_id = end
                reason: EngineFinishReason = "length" if stop_id is None else "stop"
                finished.append(self._finish(sequence, reason, stop_id, num_tokens, now_seconds))
        return tokens, canvases, finished

    def give_up(self, request_id: str, now_seconds: float) -> FinishedEvent:
        """End a running sequence for which the memory does not suffice even alone."""
        sequence = self._running[request_id]
        return self._finish(sequence, "out_of_memory", None, sequence.num_reported, now_seconds)

    def check_integrity(self) -> None:
        """Assert that exactly the running sequences hold cache slots, and that none is lost."""
        self._slots.check_integrity()
        held = sum(num_slots(sequence.request, self._is_block_causal) for sequence in self._running.values())
        assert held == self._slots.num_used, f"{self._slots.num_used} slots in use, {held} accounted for"

    def _start_waiting(self) -> None:
        """First come, first served: whoever is at the head waits until its slots are free."""
        while self._waiting and len(self._running) < self._config.max_num_seqs:
            sequence = self._waiting[0]
            wanted = num_slots(sequence.request, self._is_block_causal)
            if wanted:
                sequence.slot_start = self._slots.allocate(wanted)
                if sequence.slot_start is None:
                    return
            self._waiting.popleft()
            self._running[sequence.request.request_id] = sequence

    def _finish(
        self,
        sequence: Sequence,
        reason: EngineFinishReason,
        stop_id: int | None,
        num_tokens: int,
        now_seconds: float,
    ) -> FinishedEvent:
        """Take a sequence out and give its slots back. The one way to leave."""
        request_id = sequence.request.request_id
        if self._running.pop(request_id, None) is None:
            self._waiting.remove(sequence)
        if sequence.slot_start is not None:
            self._slots.free(sequence.slot_start)
        return FinishedEvent(request_id, reason, stop_id, sequence.figures(num_tokens, now_seconds))


def _count(sequence: Sequence, decision: Decision, started_seconds: float, now_seconds: float) -> None:
    span = decision.span
    if sequence.first_forward_seconds is None:
        sequence.first_forward_seconds = started_seconds
    sequence.forwards += 1
    sequence.rows += span.token_ids.shape[0]
    if span.phase == "refresh":
        sequence.refresh_forwards += 1
        sequence.refresh_seconds += now_seconds - started_seconds
    else:
        sequence.accepted_depths[decision.accepted_depth] += 1
    sequence.drafted_tokens += span.num_drafted
    sequence.accepted_tokens += decision.num_accepted


def _report_tokens(sequence: Sequence, end: int | None) -> list[TokensEvent]:
    """The newly final tokens of one sequence, at the granularity it asked for; none or one event."""
    stop = sequence.num_final
    if sequence.request.granularity == "block":
        # What lies before the active block; at the end of the canvas the active block itself is complete.
        stop = min(stop, sequence.block_start - sequence.num_prompt) if not sequence.state.is_complete else stop
    stop = min(stop, sequence.request.max_tokens) if end is None else end
    start = sequence.num_reported
    if stop <= start:
        return []
    sequence.num_reported = stop
    final = slice(sequence.num_prompt + start, sequence.num_prompt + stop)
    return [
        TokensEvent(
            sequence.request.request_id,
            tuple(sequence.token_ids[final].tolist()),
            tuple(sequence.logprobs[final].tolist()),
        )
    ]


def _canvas_event(sequence: Sequence, decision: Decision) -> CanvasEvent:
    """The generated part of the block a forward worked on, as it stands after that forward."""
    span = decision.span
    latest = decision.candidates[decision.path[-1]]
    first = max(span.block_start, sequence.num_prompt)
    token_ids: list[int | None] = []
    confidences: list[float | None] = []
    depths: list[int | None] = []
    for position in range(first, span.block_start + sequence.block_length):
        if sequence.decided[position]:
            token_ids.append(int(sequence.token_ids[position]))
            confidences.append(math.exp(sequence.logprobs[position]))
            depths.append(int(sequence.depths[position]))
        else:
            token_ids.append(None)
            column = position - span.block_start
            confidences.append(None if latest is None else math.exp(latest.log_confidence[column]))
            depths.append(None)
    return CanvasEvent(
        request_id=sequence.request.request_id,
        start=first - sequence.num_prompt,
        token_ids=tuple(token_ids),
        confidences=tuple(confidences),
        depths=tuple(depths),
        forwards=sequence.forwards,
        drafted=span.num_drafted,
        accepted=decision.num_accepted,
    )
