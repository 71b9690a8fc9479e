"""The engine: add requests, step, collect events. One forward per step, synchronous, usable without any server:

engine = Engine(load_model(demo_path()), EngineConfig())
engine.add(Request("a", prompt_ids=(20, 30, 40), max_tokens=32))
while engine.has_work():
    for event in engine.step().tokens:
        print(event.request_id, event.token_ids)
"""

from __future__ import annotations

import time
from collections.abc import Callable

from psd_core.admission import Limits, check
from psd_core.config import EngineConfig
from psd_core.decide import Decision, decide
from psd_core.errors import ConfigError, OutOfMemoryError
from psd_core.events import FinishedEvent, Phase, StepOutput, StepReport
from psd_core.graphs import Recorder
from psd_core.kvcache.modes import attention_caches
from psd_core.kvcache.store import affordable_slots
from psd_core.models.layers import DiffusionDecoder
from psd_core.plan import Span, StepPlan
from psd_core.request import Request
from psd_core.runner import Runner, describe
from psd_core.scheduler import Scheduler

DEFAULT_MAX_CACHE_TOKENS = 2**18
BUDGET_GROWTH = 32  # a budget halved for want of memory grows by a 32nd per forward: doubled again after 23


class Engine:
    """One model and the requests it is working on. Not thread-safe: one owner calls it."""

    def __init__(
        self,
        model: DiffusionDecoder,
        config: EngineConfig,
        clock: Callable[[], float] = time.monotonic,
        on_begin: Callable[[list[str]], object] = lambda request_ids: None,
        recorder: Recorder | None = None,
    ) -> None:
        """clock: seconds, monotonic. ConfigError if a limit exceeds what the model allows.

        on_begin: told the ids of requests whose first forward is about to run, since it may be the process's last.
        recorder: records denoising forwards and repeats them (psd_core.graphs); None launches each of them anew.
        """
        spec = model.spec
        max_model_len = spec.max_positions if config.max_model_len is None else config.max_model_len
        if max_model_len > spec.max_positions:
            raise ConfigError(
                "max_model_len",
                f"max_model_len must be at most the model's {spec.max_positions}, got {max_model_len}",
            )
        local = model.local
        affordable = model.group.least(
            affordable_slots(local.num_layers, local.num_kv_heads, local.head_dim, model.dtype, model.device)
        )
        num_slots = config.max_cache_tokens or min(
            config.max_num_seqs * 2 * max_model_len, DEFAULT_MAX_CACHE_TOKENS, affordable
        )
        caches = attention_caches(spec.attention)
        self.limits = Limits(
            max_model_len, spec.vocab_size, num_slots, spec.block_length, caches, spec.is_context_causal
        )
        self._clock = clock
        self._on_begin = on_begin
        self._max_budget = self._budget = config.max_num_batched_tokens
        banned_ids = tuple(sorted({spec.mask_id, *config.undefined_ids}))
        # Other ranks are told of whole forwards only.
        self._scheduler = Scheduler(config, num_slots, spec, spreads_refreshes=model.group.shard.size == 1)
        self._runner = Runner(model, num_slots, config.max_logit_rows, banned_ids, recorder)
        self._cancelled: list[str] = []

    def add(self, request: Request, arrival_seconds: float | None = None) -> None:
        """Queue a request. RequestError or ContextError if it can never be served; nothing is queued then.

        arrival_seconds: on the engine's clock, if the request has waited already to be handed over; None: now.
        """
        check(request, self.limits)
        self._scheduler.add(request, self._clock() if arrival_seconds is None else arrival_seconds)

    def cancel(self, request_id: str) -> None:
        """End a request at the next step, which reports it; unknown and finished ids are ignored."""
        self._cancelled.append(request_id)

    def has_work(self) -> bool:
        """Whether `step` has something to do or to report."""
        return self._scheduler.has_work() or bool(self._cancelled)

    def step(self) -> StepOutput:
        """One forward over everything that runs: plan, forward, decide, apply."""
        started = self._clock()
        ended_early = self._scheduler.cancel(self._cancelled, started)
        self._cancelled = []
        empty = self._scheduler.end_empty(started)
        ended_early += empty.finished
        out_of_memory = 0
        while True:
            plan = self._scheduler.plan(self._budget)
            if plan.is_empty:
                occupancy = self._scheduler.occupancy
                return StepOutput(occupancy, empty.prompts, finished=ended_early, out_of_memory=out_of_memory)
            self._runner.copy(self._scheduler.take_copies())
            try:
                decisions = self._forward(plan)
                break
            except OutOfMemoryError:
                out_of_memory += 1
                ended_early += self._shrink(plan)
        ended = self._clock()
        self._budget = min(self._max_budget, self._budget + self._budget // BUDGET_GROWTH + 1)
        outcome = self._scheduler.apply(decisions, started, ended, plan.portions)
        return StepOutput(
            occupancy=self._scheduler.occupancy,
            prompts=empty.prompts + outcome.prompts,
            tokens=outcome.tokens,
            canvases=outcome.canvases,
            finished=ended_early + outcome.finished,
            report=_report(plan, decisions, ended - started),
            out_of_memory=out_of_memory,
        )

    def _forward(self, plan: StepPlan) -> list[Decision]:
        begun = [span.request.request_id for span in plan.spans if span.is_first]
        begun += [
            portion.span.request.request_id
            for portion in plan.portions
            if portion.span.is_first and portion.layers.start == 0
        ]
        if begun:
            self._on_begin(begun)
        return decide(plan.completed, self._runner.run(plan))

    def _shrink(self, plan: StepPlan) -> list[FinishedEvent]:
        """After a forward that did not fit: halve the next one, or end the one request that cannot be made smaller.

        As long as there are drafts to shed, every sequence keeps its place.
        """
        if plan.portions:
            self._scheduler.refuse_portions(plan.portions)
            return []
        num_tokens = sum(span.num_tokens for span in plan.spans)
        num_bare = sum(_num_bare_tokens(span) for span in plan.spans)
        self._budget = max(1, num_tokens // 2, num_bare if num_bare < num_tokens else 0)
        if sum(span.num_tokens for span in self._scheduler.plan(self._budget).spans) < num_tokens:
            return []
        return [self._scheduler.give_up(plan.spans[0].request.request_id, self._clock())]

    def check_integrity(self) -> None:
        """Assert that cache slots and sequences agree."""
        self._scheduler.check_integrity()


def _num_bare_tokens(span: Span) -> int:
    """Query tokens of the span once every row that may be shed is shed."""
    num_rows, width = span.token_ids.shape
    return int(width if span.phase == "score" or span.request.decoder.may_shed else num_rows * width)


def _report(plan: StepPlan, decisions: list[Decision], seconds: float) -> StepReport:
    phases = {span.phase for span in plan.spans}
    if plan.portions:
        phases.add("refresh")
    phase: Phase = "mixed" if len(phases) > 1 else next(iter(phases))
    rows, tokens = describe(plan.completed)
    denoised = [decision for decision in decisions if decision.span.phase == "denoise"]
    depths = [0] * (1 + max((decision.accepted_depth for decision in denoised), default=0))
    for decision in denoised:
        depths[decision.accepted_depth] += 1
    return StepReport(
        phase=phase,
        seconds=seconds,
        rows=rows,
        tokens=tokens,
        drafted_tokens=sum(span.num_drafted for span in plan.spans),
        accepted_tokens=sum(decision.num_accepted for decision in decisions),
        accepted_depths=tuple(depths),
        mean_draft_depth=sum(len(decision.span.rows) - 1 for decision in denoised) / max(1, len(denoised)),
    )
