"""Training batches: problems as canvases, masked the way decoding sees them."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

import torch
from tokenizers import Tokenizer
from torch import Tensor

from demo_model.problem import Problem
from demo_model.tasks import Stage, draw
from demo_model.vocabulary import ASSISTANT_ID, BOS_ID, EOS_ID, EOT_ID, MASK_ID, SYSTEM_ID, USER_ID

BLOCK_LENGTH: Final = 32
# Lengths of canvases that just hold what is asked, each as often among tokens as problems need it.
_FITTING_LENGTHS: Final = (48, 64, 80, 96, 128)
_FITTING_SHARES: Final = (0.21, 0.23, 0.21, 0.20, 0.15)
# And of longer ones, where the model learns to leave the rest empty.
_ROOMY_LENGTHS: Final = (96, 128, 160, 224)
_ROOMY_SHARES: Final = (0.40, 0.30, 0.18, 0.12)
_ROOMY_SHARE: Final = 0.25  # of batches
_DRILL_LENGTH: Final = 64
_FOUND_SHARE: Final = 0.6  # of the drill's samples hide nothing but what must be looked up
_FOUND_RATE: Final = 0.9  # of its tokens are hidden then
_SYSTEMS: Final = ("You are a helpful assistant.", "Answer the question.", "You are a careful assistant. Be brief.")
_EOS_TAIL_WEIGHT: Final = 0.15  # of end-of-text tokens behind the first: easy, and most of a short answer's canvas
_MIN_RATE: Final = 0.15  # bounds the weight of samples with very few masked positions


@dataclass(frozen=True, slots=True)
class Canvas:
    """The one length of a batch's canvases, and which problems they are for."""

    length: int
    shortest: int | None  # problems that need more tokens than this, and no more than `length`; None: any


@dataclass(frozen=True, slots=True)
class TrainingBatch:
    """B canvases of one length T: what the model sees, what it should say, and how much each position counts."""

    inputs: Tensor  # [B, T] int64, masked positions carry the mask id
    targets: Tensor  # [B, T] int64
    weights: Tensor  # [B, T] float32, 0 where nothing is asked


def encode(tokenizer: Tokenizer, problem: Problem, rng: random.Random) -> tuple[list[int], list[int]]:
    """Prompt ids and answer ids (first end-of-text included), as raw text or as a chat, with even odds."""

    def ids(text: str) -> list[int]:
        encoded: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return encoded

    if rng.random() < 0.5:
        separator = "" if problem.prompt.endswith("\n") else "\n"
        return ids(problem.prompt), [*ids(separator + problem.answer), EOS_ID]
    system = [SYSTEM_ID, *ids(rng.choice(_SYSTEMS)), EOT_ID] if rng.random() < 0.15 else []
    prompt = [BOS_ID, *system, USER_ID, *ids(problem.prompt), EOT_ID, ASSISTANT_ID]
    return prompt, [*ids(problem.answer), EOS_ID]


def choose_canvas(rng: random.Random, stage: Stage) -> Canvas:
    """A canvas for one batch. Processes that share a step should share it: they wait for each other."""
    if stage == "drill":
        return Canvas(_DRILL_LENGTH, None)
    if rng.random() < _ROOMY_SHARE:
        return Canvas(rng.choices(_ROOMY_LENGTHS, _ROOMY_SHARES)[0], None)
    index = rng.choices(range(len(_FITTING_LENGTHS)), _FITTING_SHARES)[0]
    return Canvas(_FITTING_LENGTHS[index], _FITTING_LENGTHS[index - 1] if index else 0)


def make_batch(
    tokenizer: Tokenizer, rng: random.Random, num_tokens: int, canvas: Canvas, stage: Stage = "early"
) -> TrainingBatch:
    """About `num_tokens` tokens of canvases of one length; all randomness comes from `rng`."""
    length = canvas.length
    inputs: list[list[int]] = []
    targets: list[list[int]] = []
    weights: list[list[float]] = []
    while len(inputs) * length < num_tokens:
        problem = draw(rng, stage)
        prompt, answer = encode(tokenizer, problem, rng)
        is_blockwise = rng.random() < 0.5
        room = length - len(prompt)
        if canvas.shortest is not None:
            if not canvas.shortest < len(prompt) + _needed(len(answer), is_blockwise) <= length:
                continue
        # An answer that does not fit is cut sometimes: real requests have small limits too.
        elif room < BLOCK_LENGTH // 2 or (room < len(answer) and rng.random() < 0.8):
            continue
        first_eos = len(prompt) + len(answer) - 1
        target = [*prompt, *answer[:room], *[EOS_ID] * (room - len(answer))]
        if stage == "drill" and problem.found and room >= len(answer) and rng.random() < _FOUND_SHARE:
            masked = _mask_found(tokenizer, problem, first_eos, length, rng)
            asked = list(masked)
        else:
            masked, asked = _mask(len(prompt), min(len(answer), room), length, is_blockwise, rng)
        rate = max(_MIN_RATE, sum(asked) / max(1, min(room, BLOCK_LENGTH)))
        inputs.append([MASK_ID if hidden else token for token, hidden in zip(target, masked, strict=True)])
        targets.append(target)
        weights.append(
            [
                (_EOS_TAIL_WEIGHT if index > first_eos else 1.0) / rate if wanted else 0.0
                for index, wanted in enumerate(asked)
            ]
        )
    return TrainingBatch(torch.tensor(inputs), torch.tensor(targets), torch.tensor(weights))


def _needed(num_answer: int, is_blockwise: bool) -> int:
    """Tokens of canvas behind the prompt: the answer, or the blocks that decoding fills for it."""
    return -(-num_answer // BLOCK_LENGTH) * BLOCK_LENGTH if is_blockwise else num_answer


def _mask(
    num_prompt: int, num_answer: int, length: int, is_blockwise: bool, rng: random.Random
) -> tuple[list[bool], list[bool]]:
    """(masked, asked) per position.

    Blockwise is as decoding sees it: clean blocks, then one partly masked block, then nothing but masks; only the
    active block is asked. Otherwise masks spread evenly over the whole canvas.
    """
    rate = 1.0 if rng.random() < 0.12 else rng.random()
    masked = [False] * length
    asked = [False] * length
    if is_blockwise:
        num_blocks = -(-(length - num_prompt) // BLOCK_LENGTH)
        answer_blocks = -(-num_answer // BLOCK_LENGTH)
        block = rng.randrange(answer_blocks if rng.random() < 0.9 else num_blocks)
        start = num_prompt + block * BLOCK_LENGTH
        stop = min(length, start + BLOCK_LENGTH)
        masked[stop:] = [True] * (length - stop)
    else:
        start, stop = num_prompt, length
    hidden = [rng.random() < rate for _ in range(start, stop)]
    hidden[rng.randrange(min(len(hidden), max(1, num_prompt + num_answer - start)))] = True
    masked[start:stop] = hidden
    asked[start:stop] = hidden
    return masked, asked


def _mask_found(
    tokenizer: Tokenizer, problem: Problem, answer_stop: int, length: int, rng: random.Random
) -> list[bool]:
    """Masked positions: tokens of what must be looked up, at least one; the answer ends before `answer_stop`."""
    offsets = tokenizer.encode(problem.answer, add_special_tokens=False).offsets
    found = [
        answer_stop - len(offsets) + index
        for index, (first, last) in enumerate(offsets)
        if any(first < stop and last > start for start, stop in problem.found)
    ]
    hidden = {rng.choice(found), *(position for position in found if rng.random() < _FOUND_RATE)}
    return [position in hidden for position in range(length)]
