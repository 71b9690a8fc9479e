"""Problems of the built-in model: held-out prompts stay out of training, and grading knows right from wrong."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from tokenizers import Tokenizer

import demo_model
from demo_model.grading import grade
from demo_model.problem import Problem
from demo_model.samples import BLOCK_LENGTH, choose_canvas, make_batch
from demo_model.tasks import TASKS, Stage, draw, is_held_out, problems
from demo_model.texts import short_recall
from demo_model.vocabulary import MASK_ID
from demo_model.words import NAMES
from psd_core.assets import demo_path

EXAMPLES = Path(demo_model.__file__).with_name("examples.jsonl")


@pytest.mark.parametrize("stage", get_args(Stage))
def test_training_never_draws_a_held_out_prompt(stage: Stage) -> None:
    rng = random.Random(0)
    assert not any(is_held_out(draw(rng, stage).prompt) for _ in range(2000))


def test_the_evaluated_problems_are_held_out() -> None:
    assert all(is_held_out(problem.prompt) for problem in problems("held-out", 200, 3))


def test_a_seed_gives_the_same_problems_without_repeats() -> None:
    first = problems("held-out", 140, 5)
    assert first == problems("held-out", 140, 5)
    assert len({problem.prompt for problem in first}) == 140
    assert {problem.task for problem in first} == set(TASKS)
    with pytest.raises(ValueError, match="split must be train"):
        problems("test", 1, 0)


@pytest.mark.parametrize("split", ["train", "held-out", "held-out-names"])
def test_the_reference_answer_of_every_problem_is_right_and_an_empty_one_wrong(split: str) -> None:
    for problem in problems(split, 105, 1):
        assert grade(problem, "\n" + problem.answer if problem.task != "code" else problem.answer), problem
        assert not grade(problem, "")


def test_code_that_leaves_before_the_asserts_is_wrong() -> None:
    problem = Problem("code", "def f(x):\n", "    return x", ("assert f(1) == 1",))
    assert grade(problem, "    return x")
    assert not grade(problem, "    return x + 1")
    assert not grade(problem, "    return x\nimport os\nos._exit(0)")
    assert not grade(problem, "    while True: pass")


def test_a_wrong_number_or_a_missing_mark_is_wrong() -> None:
    problem = next(problem for problem in problems("held-out", 7, 1) if problem.task == "word")
    assert not grade(problem, problem.answer.replace("####", ""))
    assert not grade(replace(problem, answer="#### 5"), "#### 55")


def test_the_shipped_examples_are_held_out_and_answered() -> None:
    examples = [json.loads(line) for line in EXAMPLES.read_text(encoding="utf-8").splitlines()]
    assert len(examples) == 50
    assert {example["task"] for example in examples} == set(TASKS)
    for example in examples:
        assert set(example) == {"task", "prompt", "answer"}
        assert is_held_out(example["prompt"])


@pytest.mark.parametrize("stage", get_args(Stage))
def test_masked_training_positions_carry_the_mask_and_only_they_are_asked(stage: Stage) -> None:
    tokenizer = Tokenizer.from_file(str(demo_path() / "tokenizer.json"))
    for seed in range(20):
        rng = random.Random(seed)
        batch = make_batch(tokenizer, rng, 2048, choose_canvas(rng, stage), stage)
        is_masked = batch.inputs == MASK_ID
        assert bool((is_masked | (batch.inputs == batch.targets)).all())
        assert not bool(((batch.weights > 0) & ~is_masked).any())
        assert bool(((batch.weights > 0).sum(dim=1) >= 1).all())
        assert batch.inputs.shape[1] >= BLOCK_LENGTH


def test_the_drill_marks_exactly_what_must_be_looked_up() -> None:
    rng = random.Random(1)
    for _ in range(200):
        problem = short_recall(rng, NAMES)
        passage, _, asked = problem.prompt.partition(" Tell me about ")
        people = asked.removesuffix(".").split(", ")
        found = [problem.answer[start:stop] for start, stop in problem.found]
        assert len(people) == len(found)
        for person, value in zip(people, found, strict=True):
            assert re.search(rf"\b{person}\b[^.]*\b{value}\.", passage)


def test_many_canvases_of_the_drill_hide_nothing_but_what_must_be_looked_up() -> None:
    tokenizer = Tokenizer.from_file(str(demo_path() / "tokenizer.json"))
    rng = random.Random(2)
    batch = make_batch(tokenizer, rng, 8192, choose_canvas(rng, "drill"), "drill")
    is_masked = batch.inputs == MASK_ID
    shown = [tokenizer.decode(row.tolist(), skip_special_tokens=False) for row in batch.inputs]
    end = re.compile(r"\w[^.]*<\|mask\|>\.(<\|endoftext\|>)+$")
    is_bare = ["=" not in text and end.search(text) is not None for text in shown]  # equations end alike
    assert sum(is_bare) > len(is_bare) // 4
    assert all(int(row.sum()) <= 20 for row, bare in zip(is_masked, is_bare, strict=True) if bare)
