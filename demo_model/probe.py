"""A quick look at a network in training: answers to a few held-out problems, without the engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

from demo_model.grading import grade
from demo_model.network import Network
from demo_model.problem import Problem
from demo_model.samples import BLOCK_LENGTH
from demo_model.vocabulary import EOS_ID, MASK_ID

_THRESHOLD: Final = 0.9


@torch.inference_mode()
def answer(network: Network, tokenizer: Tokenizer, prompts: Sequence[str], num_blocks: int = 4) -> list[str]:
    """Text for raw prompts, blocks left to right; a step decides what is surer than 0.9, or else the surest."""
    encoded = [tokenizer.encode(prompt, add_special_tokens=False).ids for prompt in prompts]
    texts = []
    for ids in encoded:
        canvas = torch.tensor([ids + [MASK_ID] * (num_blocks * BLOCK_LENGTH)])
        for block in range(num_blocks):
            start = len(ids) + block * BLOCK_LENGTH
            while MASK_ID in canvas[0, start : start + BLOCK_LENGTH]:
                hidden = network(canvas)[0, start : start + BLOCK_LENGTH]
                logits = F.linear(hidden, network.embedding)
                logits[:, MASK_ID] = -torch.inf
                best, tokens = torch.softmax(logits.float(), dim=-1).max(dim=-1)
                best[canvas[0, start : start + BLOCK_LENGTH] != MASK_ID] = -1.0
                chosen = (best > _THRESHOLD) | (best == best.max())
                canvas[0, start : start + BLOCK_LENGTH][chosen] = tokens[chosen]
            if EOS_ID in canvas[0, len(ids) : start + BLOCK_LENGTH].tolist():
                break
        generated = canvas[0, len(ids) :].tolist()
        end = generated.index(EOS_ID) if EOS_ID in generated else len(generated)
        texts.append(tokenizer.decode([token for token in generated[:end] if token != MASK_ID]))
    return texts


def accuracy(network: Network, tokenizer: Tokenizer, problems: Sequence[Problem]) -> dict[str, float]:
    """Share of right answers per task."""
    right: dict[str, list[bool]] = {}
    for problem, text in zip(problems, answer(network, tokenizer, [p.prompt for p in problems]), strict=True):
        right.setdefault(problem.task, []).append(grade(problem, text))
    return {task: sum(values) / len(values) for task, values in sorted(right.items())}
