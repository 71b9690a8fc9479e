"""What a policy did without drafts, block by block: every state and the candidates it was decided from.

Whatever is drafted under `exact`, these are the states on the way. So any shape of drafts can be judged on them
afterwards, without another forward.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.measuring import Task
from psd_core.block import BlockState, Candidates
from psd_core.config import DecoderConfig, EngineConfig
from psd_core.decide import decide
from psd_core.policies import denoise, make_policy
from psd_core.request import Request
from psd_core.runner import Runner
from psd_core.scheduler import Scheduler

BUDGET = 1 << 16  # query tokens per forward
NUM_CHOICES = 2  # tokens recorded per position: the best and the second best


@dataclass(frozen=True, slots=True, eq=False)
class Trajectory:
    """One block, or as much of it as the answer needed.

    states       [n + 1] from the block's first state to the last one decided
    candidates   [n] of every state but the last; `top` holds the two most probable tokens per position
    """

    states: tuple[BlockState, ...]
    candidates: tuple[Candidates, ...]

    @property
    def num_tokens(self) -> int:
        """Positions decided on the way."""
        return self.states[0].num_masked - self.states[-1].num_masked


def record(task: Task, decoder: DecoderConfig, max_tokens: int, batch: int) -> list[Trajectory]:
    """Decode all prompts of `task`, so many at once. `decoder` drafts nothing and needs no cache."""
    assert decoder.draft_depth == 0
    assert decoder.cache == "none"
    spec, policy = task.model.spec, make_policy(decoder)
    config = EngineConfig(max_num_seqs=batch)
    scheduler = Scheduler(config, 0, spec)
    runner = Runner(task.model, 0, config.max_logit_rows, (spec.mask_id,))
    for index, prompt in enumerate(task.prompts):
        request = Request(str(index), prompt, max_tokens, decoder, stop_ids=task.stop_ids, num_top_logprobs=NUM_CHOICES)
        scheduler.add(request, 0.0)
    steps: dict[tuple[int, int], list[tuple[BlockState, Candidates]]] = {}
    while scheduler.has_work():
        plan = scheduler.plan(BUDGET)
        decisions = decide(plan.spans, runner.run(plan))
        for decision in decisions:
            scored = decision.candidates[0]
            assert scored is not None
            block = int(decision.span.request.request_id), decision.span.block_start
            steps.setdefault(block, []).append((decision.span.rows[0], scored))
        scheduler.apply(decisions, 0.0, 0.0)
    found = []
    for block in sorted(steps):
        states = [state for state, _ in steps[block]]
        candidates = tuple(scored for _, scored in steps[block])
        found.append(Trajectory((*states, denoise(policy, states[-1], candidates[-1])), candidates))
    return found
