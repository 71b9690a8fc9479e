"""The engine's loop with a fixed acceptance trace: what is drafted, computed and recorded is real, what holds is given.

Random weights accept hardly any draft, so their tokens per second would say nothing of a trained model's. Here the
drafts of a request's n-th denoising step hold as deep as entry n of the trace says, whatever the model thinks of them.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from psd_core.block import Candidates
from psd_core.config import EngineConfig
from psd_core.decide import Decision
from psd_core.graphs import Recorder
from psd_core.models.layers import DiffusionDecoder
from psd_core.plan import Span
from psd_core.request import Request
from psd_core.runner import Runner
from psd_core.scheduler import Scheduler

TRACE: Final = (1, 0, 2, 1)  # one draft per step on average: two tokens per denoising step
BUDGET: Final = 1 << 16


@dataclass(slots=True)
class Times:
    """What the steps of one run took, by what they did."""

    seconds: float = 0.0
    tokens: int = 0
    denoise_seconds: list[float] = field(default_factory=list)  # of steps without any refresh
    other_seconds: list[float] = field(default_factory=list)


class TracedEngine:
    """A scheduler and a runner, with a trace in place of the judgement."""

    def __init__(
        self, model: DiffusionDecoder, num_seqs: int, num_slots: int, recorder: Recorder | None, trace: Sequence[int]
    ) -> None:
        config = EngineConfig(max_num_seqs=num_seqs, max_num_batched_tokens=BUDGET)
        self._scheduler = Scheduler(config, num_slots, model.spec)
        self._runner = Runner(model, num_slots, config.max_logit_rows, (model.spec.mask_id,), recorder)
        self._trace = trace

    def run(self, requests: Sequence[Request], clock: Callable[[], float] = time.perf_counter) -> Times:
        """Until all are answered."""
        times = Times()
        steps: dict[str, int] = defaultdict(int)
        for request in requests:
            self._scheduler.add(request, clock())
        began = clock()
        while self._scheduler.has_work():
            started = clock()
            plan = self._scheduler.plan(BUDGET)
            self._runner.copy(self._scheduler.take_copies())
            decisions = [
                self._decision(span, tuple(candidates), steps)
                for span, candidates in zip(plan.spans, self._runner.run(plan), strict=True)
            ]
            outcome = self._scheduler.apply(decisions, started, clock())
            times.tokens += sum(event.figures.generated_tokens for event in outcome.finished)
            is_denoising = all(span.phase == "denoise" for span in plan.spans)
            (times.denoise_seconds if is_denoising else times.other_seconds).append(clock() - started)
        times.seconds = clock() - began
        return times

    def _decision(self, span: Span, candidates: tuple[Candidates | None, ...], steps: dict[str, int]) -> Decision:
        depth = 0
        if span.phase == "denoise":
            name = span.request.request_id
            depth = min(self._trace[steps[name] % len(self._trace)], len(span.rows) - 1)
            steps[name] += 1
        return Decision(span, candidates, tuple(range(depth + 1)))
