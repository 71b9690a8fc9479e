"""Shapes of drafts compared under `exact`: which guesses, at the same number of rows, save the most forwards.

    python -m benchmarks.draft_shapes --problems 350 --rows 1 3 7

The built-in model solves held-out problems by the policy alone. Its states are then replayed: `exact` drafts never
change them, so which drafts would have held is known without another forward. Shapes that learn do so on the way, and
are judged on each step before they learn from it. The oracles say what no drafter of a kind can surpass.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import numpy as np
import torch

from benchmarks.habits import LikelyChain, LikelyStates, OrderedChain
from benchmarks.measuring import load_task
from benchmarks.shapes import (
    Fixed,
    Scene,
    Shape,
    chain,
    floored_chain,
    key_of,
    ladder,
    steps_of,
    subsets,
    with_second_token,
    with_swapped_order,
)
from benchmarks.trajectories import Trajectory, record
from psd_core.assets import demo_path
from psd_core.block import BlockState
from psd_core.config import POLICY_NAMES, DecoderConfig, PolicyName
from psd_core.policies import Policy, make_policy

Judge = Callable[[Scene, Sequence[BlockState], Sequence[BlockState]], tuple[int, int]]  # rows drafted, states that held


@dataclass(slots=True)
class Tally:
    """Sums over all blocks."""

    tokens: int = 0
    forwards: int = 0
    rows: int = 0
    plain_forwards: int = 0  # without drafts
    drafting_forwards: int = 0  # that could carry drafts
    accepted: int = 0  # drafted states that held

    def line(self, name: str, *, has_rows: bool = True) -> str:
        """A line of the table."""
        rows, per_row = f"{self.rows / self.forwards:.2f}", f"{self.tokens / self.rows:.2f}"
        return (
            f"| {name} | {rows if has_rows else '–'} | {self.accepted / max(1, self.drafting_forwards):.2f} "
            f"| {self.forwards / self.plain_forwards:.3f} | {self.plain_forwards / self.forwards:.2f} "
            f"| {per_row if has_rows else '–'} |"
        )


def replay(trajectories: Sequence[Trajectory], policy: Policy, judge: Judge) -> Tally:
    """What `exact` would have taken with the drafts that `judge` speaks for."""
    tally = Tally()
    for trajectory in trajectories:
        num_scored = len(trajectory.candidates)
        states = trajectory.states
        tally.tokens += trajectory.num_tokens
        tally.plain_forwards += num_scored
        tally.forwards += 1  # the block's first, which has nothing to draft from
        tally.rows += 1
        index = 0  # the candidates at hand are those of this state
        while index + 1 < num_scored:
            scene = Scene(states[index], trajectory.candidates[index], states[index + 1], policy)
            # The last state needs no forward, so a draft of it saves none.
            num_drafts, depth = judge(scene, states[index + 2 : num_scored], states[index + 2 :])
            tally.forwards += 1
            tally.drafting_forwards += 1
            tally.rows += 1 + num_drafts
            tally.accepted += depth
            index += 1 + depth
    return tally


def judge_of(shape: Shape, count: int) -> Judge:
    """Speaks for the drafts of a shape, at most `count` rows of them."""

    def judge(scene: Scene, drafted: Sequence[BlockState], following: Sequence[BlockState]) -> tuple[int, int]:
        # Complete drafts are not computed; their parent judges them.
        keys = {key_of(draft) for draft in shape.drafts(scene, count) if not draft.is_complete}
        assert len(keys) <= count
        depth = next((index for index, state in enumerate(drafted) if key_of(state) not in keys), len(drafted))
        shape.learn(scene, following[: depth + 1])  # the accepted row's own candidates tell one state more
        return len(keys), depth

    return judge


def judge_of_oracle(holds: Callable[[Scene, BlockState], bool]) -> Judge:
    """Speaks for as many drafts of a kind as there could be."""

    def judge(scene: Scene, drafted: Sequence[BlockState], following: Sequence[BlockState]) -> tuple[int, int]:
        return 0, next((index for index, state in enumerate(drafted) if not holds(scene, state)), len(drafted))

    return judge


def has_stale_tokens(scene: Scene, state: BlockState) -> bool:
    """Whether all that is new in `state` are the stale candidates."""
    new = state.filled_since(scene.state)
    return bool(np.array_equal(state.token_ids[new], scene.stale.token_ids[new]))


def is_ranked_prefix(scene: Scene, state: BlockState) -> bool:
    """Whether moreover the new positions are the first ones of the stale order."""
    new = state.filled_since(scene.state)
    return has_stale_tokens(scene, state) and bool(np.array_equal(np.sort(scene.ranked[: new.size]), new))


def shapes(threshold: float) -> Mapping[str, Callable[[], Shape]]:
    """By name, what makes one; those that learn must be made anew for every run."""

    def falling(factors: Sequence[float]) -> Fixed:
        return ladder([factor * threshold for factor in factors])

    return {
        "chain, +1 (the default)": lambda: chain(1),
        "chain, +2": lambda: chain(2),
        "chain, `policy`": lambda: chain("policy"),
        "chain, +1 down to confidence 0.3": lambda: floored_chain(0.3),
        "chain, +1 down to confidence 0.5": lambda: floored_chain(0.5),
        "chain of 1, 2, 4, 8 …": lambda: steps_of([1 << index for index in range(8)]),
        "chain, first draft also with its second token": lambda: Fixed(with_second_token),
        "chain, second position also without the first": lambda: Fixed(with_swapped_order),
        "all sets of the first positions": lambda: Fixed(subsets),
        "ladder 0.9, 0.8, 0.7 … of the threshold": lambda: falling([0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3]),
        "ladder 0.8, 0.6, 0.4 … of the threshold": lambda: falling([0.8, 0.6, 0.4, 0.3, 0.2, 0.1]),
        "ladder 0.6, 0.4, 0.2 … of the threshold": lambda: falling([0.6, 0.4, 0.2, 0.1]),
        "chain, +1 in learned order": OrderedChain,
        "learned chain, the policy's order": lambda: LikelyChain(is_reordered=False),
        "learned chain, learned order": lambda: LikelyChain(is_reordered=True),
        "learned states": lambda: LikelyStates(has_second_tokens=False),
        "learned states and second tokens": lambda: LikelyStates(has_second_tokens=True),
        "learned states of chance 0.1 or more": lambda: LikelyStates(has_second_tokens=False, floor=0.1),
        "learned states of chance 0.2 or more": lambda: LikelyStates(has_second_tokens=False, floor=0.2),
    }


ORACLES: Mapping[str, Callable[[Scene, BlockState], bool]] = {
    "every beginning of the policy's order": is_ranked_prefix,
    "every set of positions with stale tokens": has_stale_tokens,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=demo_path())
    parser.add_argument("--problems", type=int, default=350)
    parser.add_argument("--max-tokens", type=int, default=64)
    policies = [name for name in POLICY_NAMES if name != "lopa"]
    parser.add_argument("--policy", nargs="+", choices=policies, default=["threshold", "greedy"])
    parser.add_argument("--threshold", type=float, default=0.9)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 3, 7], help="drafted rows at most")
    parser.add_argument("--block-length", type=int, default=32)
    parser.add_argument("--batch", type=int, default=16, help="requests that share forwards")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    task = load_task(given.model, given.dtype, given.problems)
    columns = "shape | rows ÷ forward | accepted ÷ drafting forward | forwards ÷ without drafts | steps ÷ forward"
    for name in given.policy:
        policy_name: PolicyName = name
        decoder = DecoderConfig(
            policy=policy_name, threshold=given.threshold, draft_depth=0, block_length=given.block_length
        )
        trajectories = record(task, decoder, given.max_tokens, given.batch)
        policy = make_policy(decoder)
        setting = f"threshold {given.threshold:g}" if name == "threshold" else name
        print(
            f"\n{setting}, `exact`, {given.problems} held-out problems, block {given.block_length}, max_tokens "
            f"{given.max_tokens}, cache `none`, {given.dtype}, no clock, {date.today()}."
        )
        for count in given.rows:
            print(f"\nAt most {count} drafted rows:\n\n| {columns} | tokens ÷ row |\n|{'---|' * 6}")
            for title, make in shapes(given.threshold).items():
                print(replay(trajectories, policy, judge_of(make(), count)).line(title), flush=True)
        print(f"\nHowever many rows:\n\n| {columns} | tokens ÷ row |\n|{'---|' * 6}")
        for title, holds in ORACLES.items():
            tally = replay(trajectories, policy, judge_of_oracle(holds))
            print(tally.line(title, has_rows=False))


if __name__ == "__main__":
    main()
