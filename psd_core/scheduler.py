"""Who runs in the next forward, and what a forward changes. The only writer of sequences.

Continuous batching at the level of forwards: a request joins as soon as a place and its cache slots are free, and
leaves at the forward after its end or cancellation. Refreshes and denoising spans share forwards. A request gets all
the cache it will ever need when it starts, so whatever runs can always finish: nothing is preempted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from psd_core.admission import num_slots
from psd_core.config import EngineConfig
from psd_core.decide import Decision
from psd_core.depths import DepthController
from psd_core.errors import RequestError
from psd_core.events import EngineFinishReason, FinishedEvent, Occupancy
from psd_core.kvcache.contexts import Contexts
from psd_core.kvcache.prefixes import SlotCopy
from psd_core.models.spec import ModelSpec
from psd_core.plan import (
    Portion,
    Span,
    StepPlan,
    make_scoring_span,
    make_span,
    next_window,
    scores_with_cache,
    scoring_limit,
    scoring_window,
)
from psd_core.report import Outcome, canvas_event, prompt_event, tokens_event
from psd_core.request import Request
from psd_core.sequence import Sequence
from psd_core.shares import Share, Spread, draft_limit, portion_prompts, spread_refreshes, take_scoring_turns


class Scheduler:
    """Waiting and running sequences and their cache slots. Owns every `Sequence`."""

    def __init__(
        self, config: EngineConfig, num_cache_slots: int, spec: ModelSpec, *, spreads_refreshes: bool = False
    ) -> None:
        """spreads_refreshes: the plans may hold portions, layers of large refreshes over several forwards."""
        self._config = config
        self._num_layers = spec.num_layers if spreads_refreshes else 1
        self._mask_id = spec.mask_id
        self._is_shifted = spec.is_shifted
        self._attention = spec.attention
        self._waiting: deque[Sequence] = deque()
        self._running: dict[str, Sequence] = {}
        kept_block_length = spec.block_length if config.prefix_cache else None
        self._contexts = Contexts(num_cache_slots, kept_block_length, spec.is_shifted)
        self._depths = DepthController()
        self._step = 0

    def add(self, request: Request, now_seconds: float) -> None:
        """Queue an admissible request. RequestError if its id is already open."""
        if request.request_id in self._running or any(
            sequence.request.request_id == request.request_id for sequence in self._waiting
        ):
            raise RequestError("request_id", f"request id {request.request_id!r} is already in use")
        self._waiting.append(Sequence(request, self._attention, now_seconds))

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

    def end_empty(self, now_seconds: float) -> Outcome:
        """End what waits and needs no forward: no token, no score."""
        outcome = Outcome()
        for sequence in [one for one in self._waiting if not (one.request.max_tokens or one.is_scoring)]:
            if sequence.is_scored_at_start:
                outcome.prompts.append(prompt_event(sequence))
            outcome.finished.append(self._finish(sequence, "length", None, 0, now_seconds))
        return outcome

    def has_work(self) -> bool:
        """Whether any sequence waits or runs."""
        return bool(self._waiting or self._running)

    @property
    def occupancy(self) -> Occupancy:
        return Occupancy(
            running=len(self._running),
            waiting=len(self._waiting),
            cache_ratio=self._contexts.used_ratio,
            kept_slots=self._contexts.num_kept,
        )

    def plan(self, budget: int) -> StepPlan:
        """Start what can start, then fill the next forward with up to `budget` query tokens. Changes no sequence.

        Whoever waited longest comes first and always gets its span, alone if it is larger than the budget; so every
        running sequence is served within as many forwards as there are running sequences. Only long prompts, computed
        bit by bit, wait for earlier ones, and prompts that are scored for their turn. Where room is short, drafts are
        shed before sequences are, but only if that cannot change the tokens (`exact`).
        """
        self._start_waiting()
        shares, spreads = self._shares(budget)
        portions = tuple(self._portion(spread) for spread in spreads)
        begun = {name for name, sequence in self._running.items() if sequence.num_layers_done}
        paused = frozenset(begun.difference(portion.span.request.request_id for portion in portions))
        return StepPlan(tuple(self._span(share) for share in shares), portions, paused)

    def take_copies(self) -> list[SlotCopy]:
        """What must be copied, in this order and once, before the next forward."""
        return self._contexts.take_copies()

    def _span(self, share: Share) -> Span:
        if share.sequence.is_scoring:
            return make_scoring_span(share.sequence, 1 + share.depth, self._mask_id, self._is_shifted)
        return make_span(share, self._mask_id, self._is_shifted)

    def _portion(self, spread: Spread) -> Portion:
        start = spread.share.sequence.num_layers_done
        stop = start + spread.num_layers
        return Portion(self._span(spread.share), range(start, stop), is_last=stop == self._num_layers)

    def _shares(self, budget: int) -> tuple[list[Share], list[Spread]]:
        """Who takes part and with how many more rows: everybody's first row, then further ones level by level."""
        shares: list[Share] = []
        # sorted() is stable: among equals the longest-running comes first.
        in_turn = sorted(self._running.values(), key=lambda sequence: sequence.last_scheduled_step)
        wanted = [self._first_share(sequence) for sequence in in_turn]
        wanted = take_scoring_turns(wanted, self._config.max_num_batched_tokens)
        whole, spreads = spread_refreshes(wanted, self._config.max_refresh_tokens, self._num_layers)
        least = self._config.max_refresh_tokens
        for share in portion_prompts(whole, budget, least, self._is_shifted, self._depths.times):
            if shares and (1 + share.depth) * share.width > budget:
                continue
            shares.append(share)
            budget -= (1 + share.depth) * share.width
        self._depths.limit(shares)
        growing = [share for share in shares if share.depth < share.most]
        while growing:
            for share in growing:
                if share.width <= budget:
                    share.depth += 1
                    budget -= share.width
                else:
                    share.most = share.depth
            growing = [share for share in growing if share.depth < share.most]
        return shares, spreads

    def _first_share(self, sequence: Sequence) -> Share:
        """The least that a sequence takes part with."""
        if sequence.is_scoring:
            window = scoring_window(sequence, self._is_shifted)
            num_rows = scoring_limit(sequence, window, num_slots(sequence.request, sequence.has_grid))
            is_cached = scores_with_cache(sequence)
            depth = int(is_cached)  # the row in front scores nothing
            return Share(sequence, window, is_cached, depth, most=num_rows - 1)
        most = draft_limit(sequence)
        _, window = next_window(sequence, self._is_shifted)
        depth = 0 if sequence.request.decoder.may_shed else most
        return Share(sequence, window, sequence.slot_start is not None, depth, most)

    def apply(
        self,
        decisions: Iterable[Decision],
        started_seconds: float,
        now_seconds: float,
        portions: tuple[Portion, ...] = (),
    ) -> Outcome:
        """Move every sequence of a forward on, and say what became final. Seconds: when the forward began, ended."""
        outcome = Outcome()
        self._step += 1
        taken = [(self._running[decision.span.request.request_id], decision) for decision in decisions]
        for portion in portions:
            self._advance(portion, started_seconds, now_seconds)
        # How much of the time was the portions' is not known.
        self._depths.observe(taken, None if portions else now_seconds - started_seconds)
        for sequence, decision in taken:
            sequence.last_scheduled_step = self._step
            _count(sequence, decision, started_seconds, now_seconds)
            if decision.span.is_first and sequence.is_scored_at_start:
                outcome.prompts.append(prompt_event(sequence))
            if decision.span.is_partial:
                sequence.num_cached = decision.span.window.stop
                continue
            if decision.span.phase == "score":
                self._record_scores(sequence, decision)
                if sequence.is_scoring:
                    continue
                outcome.prompts.append(prompt_event(sequence))
                if sequence.request.max_tokens:
                    continue
            else:
                sequence.advance(decision.span.rows, decision.candidates, decision.path)
                if sequence.request.watch:
                    outcome.canvases.append(canvas_event(sequence, decision))
            end = sequence.find_end()
            tokens = tokens_event(sequence, end[0] if end else None)
            if tokens is not None:
                sequence.num_reported += len(tokens.token_ids)
                outcome.tokens.append(tokens)
            if end:
                num_tokens, stop_id = end
                reason: EngineFinishReason = "length" if stop_id is None else "stop"
                outcome.finished.append(self._finish(sequence, reason, stop_id, num_tokens, now_seconds))
        return outcome

    def _advance(self, portion: Portion, started_seconds: float, now_seconds: float) -> None:
        """Count a portion. What its last one decides is for `apply`, which also counts that one's time."""
        sequence = self._running[portion.span.request.request_id]
        sequence.last_scheduled_step = self._step
        if sequence.first_forward_seconds is None:
            sequence.first_forward_seconds = started_seconds
        sequence.num_layers_done = 0 if portion.is_last else portion.layers.stop
        if not portion.is_last:
            sequence.refresh_seconds += now_seconds - started_seconds

    def refuse_portions(self, portions: tuple[Portion, ...]) -> None:
        """Compute the refreshes of these sequences whole from now on: no memory was left for a portion."""
        for portion in portions:
            sequence = self._running[portion.span.request.request_id]
            sequence.num_layers_done, sequence.may_spread = 0, False

    def _record_scores(self, sequence: Sequence, decision: Decision) -> None:
        if decision.span.slot_start is None:
            sequence.record_scores(decision.span.rows, decision.candidates)
            return
        sequence.record_scores(decision.span.rows[1:], decision.candidates[1:])
        # Of a shifted model the last prompt token is computed again: the first new one is read off it.
        num_final = min(decision.span.window.stop, sequence.num_prompt - int(self._is_shifted))
        sequence.num_cached = num_final // sequence.block_length * sequence.block_length

    def give_up(self, request_id: str, now_seconds: float) -> FinishedEvent:
        """End a running sequence for which the memory does not suffice even alone."""
        sequence = self._running[request_id]
        return self._finish(sequence, "out_of_memory", None, sequence.num_reported, now_seconds)

    def check_integrity(self) -> None:
        """Assert that exactly the running sequences hold cache slots, and that none is lost."""
        self._contexts.check_integrity(list(self._running.values()))

    def _start_waiting(self) -> None:
        """First come, first served: whoever is at the head waits until its slots are free."""
        while self._waiting and len(self._running) < self._config.max_num_seqs:
            sequence = self._waiting[0]
            wanted = num_slots(sequence.request, sequence.has_grid)
            if wanted:
                place = self._contexts.place(sequence, wanted)
                if place is None:
                    return
                sequence.slot_start = place.start
                if place.num_reused:
                    sequence.reuse(place.num_reused)
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
            self._contexts.release(sequence, sequence.slot_start)
        return FinishedEvent(request_id, reason, stop_id, sequence.figures(num_tokens, now_seconds))


def _count(sequence: Sequence, decision: Decision, started_seconds: float, now_seconds: float) -> None:
    span = decision.span
    if sequence.first_forward_seconds is None:
        sequence.first_forward_seconds = started_seconds
    if span.phase == "score":
        sequence.scoring_forwards += 1
        return
    sequence.forwards += 1
    sequence.rows += span.token_ids.shape[0]
    if span.phase == "refresh":
        sequence.refresh_forwards += 1
        sequence.refresh_seconds += now_seconds - started_seconds
    else:
        sequence.accepted_depths[decision.accepted_depth] += 1
    sequence.drafted_tokens += span.num_drafted
    sequence.accepted_tokens += decision.num_accepted
