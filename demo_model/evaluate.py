"""Accuracy of the built-in model on fresh problems, per task, as raw prompts and as chats.

python -m demo_model.evaluate --problems 350
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from tokenizers import Tokenizer

from demo_model.answers import decode_all
from demo_model.grading import grade
from demo_model.problem import Problem
from demo_model.tasks import TASKS, problems
from demo_model.vocabulary import ASSISTANT_ID, BOS_ID, EOS_ID, EOT_ID, USER_ID
from psd_core.assets import demo_path
from psd_core.config import DecoderConfig, EngineConfig
from psd_core.engine import Engine
from psd_core.models.loader import load_model


def prompt_ids(tokenizer: Tokenizer, problem: Problem, is_chat: bool) -> list[int]:
    """The prompt as /v1/completions or /v1/chat/completions would feed it."""
    ids: list[int] = tokenizer.encode(problem.prompt, add_special_tokens=False).ids
    return [BOS_ID, USER_ID, *ids, EOT_ID, ASSISTANT_ID] if is_chat else ids


def accuracies(
    engine: Engine, tokenizer: Tokenizer, chosen: list[Problem], decoder: DecoderConfig, is_chat: bool, max_tokens: int
) -> dict[str, float]:
    """Share of right answers per task, and over all under `all`."""
    prompts = [prompt_ids(tokenizer, problem, is_chat) for problem in chosen]
    answers = decode_all(engine, prompts, decoder, max_tokens, frozenset({EOS_ID}))
    right: dict[str, list[bool]] = {task: [] for task in (*TASKS, "all")}
    for problem, ids in zip(chosen, answers.token_ids, strict=True):
        is_right = grade(problem, tokenizer.decode(list(ids), skip_special_tokens=True))
        right[problem.task].append(is_right)
        right["all"].append(is_right)
    return {task: sum(values) / len(values) for task, values in right.items() if values}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=demo_path())
    parser.add_argument("--problems", type=int, default=350)
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    engine = Engine(load_model(arguments.model, dtype="float32"), EngineConfig(max_num_seqs=16))
    tokenizer = Tokenizer.from_file(str(arguments.model / "tokenizer.json"))
    decoders = {
        "greedy": DecoderConfig(policy="greedy", draft_depth=0, cache="none"),
        "threshold 0.9": DecoderConfig(policy="threshold", threshold=0.9, draft_depth=0, cache="none"),
    }
    print("| split | form | decoder | " + " | ".join((*TASKS, "all")) + " |")
    print("|" + "---|" * (4 + len(TASKS)))
    for split in ("held-out", "held-out-names"):
        chosen = problems(split, arguments.problems, arguments.seed)
        for form in ("raw", "chat"):
            for name, decoder in decoders.items():
                result = accuracies(engine, tokenizer, chosen, decoder, form == "chat", arguments.max_tokens)
                cells = " | ".join(f"{result[task]:.2f}" for task in (*TASKS, "all"))
                print(f"| {split} | {form} | {name} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
