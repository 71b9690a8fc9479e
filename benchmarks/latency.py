"""Tokens per second of one request at a time, decoder against decoder, on the built-in model's held-out problems.

    python -m benchmarks.latency --problems 70

The decoders take turns, problem by problem, so a busy machine slows all of them alike; every one keeps its engine, so
that "auto" learns as it would in a server. Ratios are of the sums over all problems; accuracy is of the same answers.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from benchmarks.measuring import CLOCKS, Clock, Task, add_machine_flags, load_task, machine
from demo_model.grading import grade
from psd_core.assets import demo_path
from psd_core.config import CacheName, DecoderConfig, EngineConfig
from psd_core.engine import Engine
from psd_core.request import Request


@dataclass(slots=True)
class Total:
    """What one decoder took and got so far."""

    seconds: float = 0.0
    tokens: int = 0
    forwards: int = 0
    rows: int = 0
    right: int = 0
    same: int = 0  # answers equal to those without drafts

    def add(self, answer: Answer, is_same: bool, is_right: bool) -> None:
        self.seconds += answer.seconds
        self.tokens += len(answer.token_ids)
        self.forwards += answer.forwards
        self.rows += answer.rows
        self.same += is_same
        self.right += is_right


def decoders(cache: CacheName, has_greedy_drafts: bool) -> dict[str, DecoderConfig]:
    """Greedy, threshold without drafts, with fixed and with chosen depths; the server's default among them."""
    threshold = DecoderConfig(draft_depth=0, cache=cache)
    named = {"greedy": replace(threshold, policy="greedy"), "threshold 0.9": threshold}
    named |= {f"threshold 0.9, D = {depth}": replace(threshold, draft_depth=depth) for depth in (1, 2, 3, 5, 7)}
    named |= {"threshold 0.9, D = auto": replace(threshold, draft_depth="auto")}
    sets = replace(threshold, draft_increment="subsets")
    named |= {f"threshold 0.9, sets, D = {depth}": replace(sets, draft_depth=depth) for depth in (3, 7)}
    named |= {"threshold 0.9, sets, D = auto": replace(sets, draft_depth="auto")}
    if has_greedy_drafts:
        named |= {f"greedy, D = {depth}": replace(threshold, policy="greedy", draft_depth=depth) for depth in (1, 3, 7)}
        named |= {"greedy, D = auto": replace(threshold, policy="greedy", draft_depth="auto")}
    return named


@dataclass(frozen=True, slots=True)
class Answer:
    """One request's outcome."""

    token_ids: tuple[int, ...]
    seconds: float
    forwards: int
    rows: int


def ask(
    engine: Engine, prompt: tuple[int, ...], decoder: DecoderConfig, task: Task, max_tokens: int, clock: Clock
) -> Answer:
    """Decode one prompt on an engine that has nothing else to do."""
    ids: list[int] = []
    forwards = rows = 0
    started = clock()
    engine.add(Request("r", prompt, max_tokens, decoder, stop_ids=task.stop_ids))
    while engine.has_work():
        output = engine.step()
        for event in output.tokens:
            ids += event.token_ids
        for finished in output.finished:
            forwards, rows = finished.figures.forwards, finished.figures.rows
    return Answer(tuple(ids), clock() - started, forwards, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_machine_flags(parser)
    parser.add_argument("--model", type=Path, default=demo_path())
    parser.add_argument("--problems", type=int, default=70)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--cache", choices=("none", "prefix", "dual"), default="none")
    parser.add_argument("--greedy-drafts", action="store_true", help="greedy with drafts, too")
    parser.add_argument("--rounds", type=int, default=1, help="how often every problem is solved")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    clock = CLOCKS[given.clock]
    task = load_task(given.model, given.dtype, given.problems)
    named = decoders(given.cache, given.greedy_drafts)
    engines = {name: Engine(task.model, EngineConfig(max_num_seqs=1), clock=clock) for name in named}
    totals = {name: Total() for name in named}
    names = list(named)
    for name in names:  # kernels are prepared, and what follows is a server that has run for a while
        for prompt in task.prompts[:3]:
            ask(engines[name], prompt, named[name], task, given.max_tokens, clock)
    for turn in range(given.rounds * given.problems):
        index, shift = turn % given.problems, turn % len(names)
        answers = {
            name: ask(engines[name], task.prompts[index], named[name], task, given.max_tokens, clock)
            for name in names[shift:] + names[:shift]
        }
        for name, one in answers.items():
            plain = answers["greedy" if name.startswith("greedy") else "threshold 0.9"]
            text = task.tokenizer.decode(list(one.token_ids), skip_special_tokens=True)
            totals[name].add(one, is_same=one.token_ids == plain.token_ids, is_right=grade(task.problems[index], text))
    count = given.rounds * given.problems
    print(
        f"Built-in model, {given.problems} held-out problems × {given.rounds}, one at a time, block 32, max_tokens "
        f"{given.max_tokens}, `exact`, cache `{given.cache}`, {machine(task.model, given.clock)}.\n"
    )
    columns = "accuracy|same as without drafts|forwards ÷ answer|rows ÷ forward|tokens / s|÷ greedy|÷ threshold"
    print(f"| decoder | {columns.replace('|', ' | ')} |\n|" + "---|" * 8)
    rate = {name: total.tokens / total.seconds for name, total in totals.items()}
    for name, total in totals.items():
        print(
            f"| {name} | {total.right / count:.3f} | {total.same / count:.3f} | {total.forwards / count:.1f} "
            f"| {total.rows / total.forwards:.2f} | {rate[name]:.0f} | {rate[name] / rate['greedy']:.2f} "
            f"| {rate[name] / rate['threshold 0.9']:.2f} |"
        )


if __name__ == "__main__":
    main()
