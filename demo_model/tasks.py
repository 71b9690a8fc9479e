"""All tasks, and how problems are drawn: training and held-out sets never share a prompt.

A prompt belongs to the held-out side if its hash says so, whatever the seed; training skips it. So held-out problems
are new to the model, though their templates and words are not: an in-distribution test. `held-out-names` draws
people with names the model never saw.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Mapping
from typing import Final, Literal

from demo_model.code import function
from demo_model.numbers import arithmetic, fact, word_problem
from demo_model.problem import Problem
from demo_model.prose import prose
from demo_model.texts import copy, json_record, list_task, question, recall, short_recall
from demo_model.words import HELD_OUT_NAMES, NAMES, invented_name

__all__ = ["TASKS", "Problem", "Stage", "draw", "is_held_out", "problems"]

_Generator = Callable[[random.Random, tuple[str, ...]], Problem]
_GENERATORS: Final[Mapping[str, _Generator]] = {
    "word": word_problem,
    "arith": arithmetic,
    "code": function,
    "list": list_task,
    "json": json_record,
    "qa": question,
    "prose": prose,
    "fact": fact,
    "recall": recall,
    "short recall": short_recall,
    "copy": copy,
}
TASKS: Final = ("word", "arith", "code", "list", "json", "qa", "prose")
Stage = Literal["early", "drill", "late"]
SHARES: Final[Mapping[Stage, Mapping[str, float]]] = {
    "early": {
        "word": 0.29,
        "arith": 0.18,
        "code": 0.11,
        "list": 0.09,
        "json": 0.05,
        "qa": 0.06,
        "prose": 0.06,
        "fact": 0.13,
        "recall": 0.03,
    },
    # Looking a name up takes two things at once, and neither helps alone: among other tasks it was never learned, in
    # 52 million tokens; with most of every batch it takes some hundred steps.
    "drill": {
        "short recall": 0.65,
        "qa": 0.10,
        "word": 0.05,
        "arith": 0.03,
        "code": 0.02,
        "list": 0.03,
        "json": 0.03,
        "prose": 0.04,
        "fact": 0.02,
        "copy": 0.03,
    },
    "late": {
        "word": 0.21,
        "arith": 0.13,
        "code": 0.06,
        "list": 0.09,
        "json": 0.08,
        "qa": 0.13,
        "prose": 0.13,
        "fact": 0.05,
        "recall": 0.08,
        "copy": 0.04,
    },
}
_HELD_OUT_SHARE: Final = 8  # one prompt in so many is held out
_INVENTED_SHARE: Final = 0.3  # of training problems are about people with made-up names


def is_held_out(prompt: str) -> bool:
    """Whether `prompt` is kept out of training."""
    return zlib.crc32(prompt.encode()) % _HELD_OUT_SHARE == 0


def draw(rng: random.Random, stage: Stage = "early") -> Problem:
    """One training problem of a stage of the training."""
    shares = SHARES[stage]
    while True:
        task = rng.choices(tuple(shares), tuple(shares.values()))[0]
        invented = rng.random() < _INVENTED_SHARE
        names = tuple(invented_name(rng) for _ in range(4)) if invented else NAMES
        problem = _GENERATORS[task](rng, names)
        if not is_held_out(problem.prompt):
            return problem


def problems(split: str, count: int, seed: int) -> list[Problem]:
    """`count` problems, the tasks in turn, without repeats as long as a task has enough of them.

    split   "train", "held-out" (prompts never trained), "held-out-names" (people never trained)
    """
    if split not in ("train", "held-out", "held-out-names"):
        raise ValueError(f"split must be train, held-out or held-out-names; got {split!r}")
    rng = random.Random(f"{split}-{seed}")
    names = HELD_OUT_NAMES if split == "held-out-names" else NAMES
    chosen: list[Problem] = []
    seen: set[str] = set()
    while len(chosen) < count:
        task = TASKS[len(chosen) % len(TASKS)]
        for _ in range(2000):
            problem = _GENERATORS[task](rng, names)
            fits = split == "held-out-names" or is_held_out(problem.prompt) == (split == "held-out")
            if fits and problem.prompt not in seen:
                break
        seen.add(problem.prompt)
        chosen.append(problem)
    return chosen
