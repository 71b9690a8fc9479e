"""Decoders compared on the held-out problems of the built-in model: accuracy, tokens per forward, rows, time.

    python -m benchmarks.decoding --problems 1000 --output docs/results.md

Every decoder sees the same problems, batched through one engine in this process. TPF is the ratio of sums over all
problems: tokens up to and including the first end-of-text, divided by the forwards the requests took part in.
"""

from __future__ import annotations

import argparse
import math
import platform
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

import torch
from tokenizers import Tokenizer

from demo_model.answers import decode_all
from demo_model.grading import grade
from demo_model.tasks import problems
from psd_core.assets import demo_path
from psd_core.config import AcceptanceName, CacheName, DecoderConfig, EngineConfig
from psd_core.engine import Engine
from psd_core.models.loader import load_model

DEPTHS = (1, 3, 5, 7)
RULES: tuple[AcceptanceName, ...] = ("exact", "subset", "token")


@dataclass(frozen=True, slots=True)
class Row:
    """One decoder's result over all problems."""

    name: str
    num_correct: int
    num_problems: int
    num_same: int | None  # outputs equal to the same policy without drafts; None for the policies themselves
    tokens: int
    forwards: int
    refresh_forwards: int
    rows: int
    seconds: float
    correct_by_task: dict[str, tuple[int, int]]  # task -> (right, all)

    @property
    def tpf(self) -> float:
        return self.tokens / self.forwards

    @property
    def tpf_without_refreshes(self) -> float:
        return self.tokens / max(1, self.forwards - self.refresh_forwards)


def decoder_grid(block_length: int, cache: CacheName) -> list[tuple[str, DecoderConfig]]:
    """Greedy with and without drafts, threshold 0.9, and PSD over it at every depth and acceptance rule."""
    greedy = DecoderConfig(policy="greedy", draft_depth=0, block_length=block_length, cache=cache)
    threshold = DecoderConfig(policy="threshold", threshold=0.9, draft_depth=0, block_length=block_length, cache=cache)
    grid = [("greedy", greedy)]
    for depth in (3, 7):
        grid.append((f"PSD(greedy), exact, D = {depth}", replace(greedy, draft_depth=depth, acceptance="exact")))
    grid.append(("threshold 0.9", threshold))
    for rule in RULES:
        for depth in DEPTHS:
            drafted = replace(threshold, draft_depth=depth, acceptance=rule)
            grid.append((f"PSD(threshold 0.9), {rule}, D = {depth}", drafted))
    return grid


def measure(arguments: argparse.Namespace) -> list[Row]:
    """All decoders of the grid over the same problems."""
    torch.set_num_threads(arguments.threads)
    path: Path = arguments.model
    model = load_model(path, dtype=arguments.dtype)
    engine = Engine(model, EngineConfig(max_num_seqs=arguments.batch, max_num_batched_tokens=1 << 16))
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    tasks = problems("held-out", arguments.problems, arguments.seed)
    eos_id = model.spec.eos_ids[0]
    prompts = [tokenizer.encode(problem.prompt, add_special_tokens=False).ids for problem in tasks]
    rows: list[Row] = []
    undrafted: tuple[tuple[int, ...], ...] | None = None
    for name, decoder in decoder_grid(arguments.block_length, arguments.cache):
        answers = decode_all(engine, prompts, decoder, arguments.max_tokens, frozenset({eos_id}))
        by_task: dict[str, tuple[int, int]] = {}
        for problem, ids in zip(tasks, answers.token_ids, strict=True):
            text = tokenizer.decode(list(ids), skip_special_tokens=True)
            right, count = by_task.get(problem.task, (0, 0))
            by_task[problem.task] = (right + grade(problem, text), count + 1)
        if decoder.draft_depth == 0:
            undrafted = answers.token_ids
        same = None
        if decoder.draft_depth and undrafted is not None:
            same = sum(ids == plain for ids, plain in zip(answers.token_ids, undrafted, strict=True))
        rows.append(
            Row(
                name=name,
                num_correct=sum(right for right, _ in by_task.values()),
                num_problems=len(tasks),
                num_same=same,
                tokens=answers.tokens,
                forwards=answers.forwards,
                refresh_forwards=answers.refresh_forwards,
                rows=answers.rows,
                seconds=answers.seconds,
                correct_by_task=dict(sorted(by_task.items())),
            )
        )
        print(table(rows).splitlines()[-1], flush=True)
    return rows


def wilson(right: int, count: int) -> tuple[float, float]:
    """95 % interval of a share (Wilson 1927)."""
    z = 1.96
    share = right / count
    centre = share + z * z / (2 * count)
    spread = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return (centre - spread) / (1 + z * z / count), (centre + spread) / (1 + z * z / count)


def table(rows: Sequence[Row]) -> str:
    """Markdown table; ratios are to `threshold 0.9`."""
    base = next((row for row in rows if row.name.startswith("threshold")), None)
    tasks = list(rows[0].correct_by_task)
    lines = [
        "| decoder | accuracy (95 %) | same output | TPF | ÷ threshold | TPF without refreshes | forwards "
        "| rows ÷ forward | wall s | " + " | ".join(tasks) + " |",
        "|" + "---|" * (9 + len(tasks)),
    ]
    for row in rows:
        low, high = wilson(row.num_correct, row.num_problems)
        ratio = f"{row.tpf / base.tpf:.2f}" if base else "–"
        same = "–" if row.num_same is None else f"{row.num_same / row.num_problems:.3f}"
        shares = " | ".join(f"{right / count:.2f}" for right, count in row.correct_by_task.values())
        lines.append(
            f"| {row.name} | {row.num_correct / row.num_problems:.3f} ({low:.3f}–{high:.3f}) | {same} | {row.tpf:.2f} "
            f"| {ratio} | {row.tpf_without_refreshes:.2f} | {row.forwards} | {row.rows / row.forwards:.2f} "
            f"| {row.seconds:.1f} | {shares} |"
        )
    return "\n".join(lines)


def cpu_name() -> str:
    """The processor as the system names it."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--model", type=Path, default=demo_path())
    parser.add_argument("--problems", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--batch", type=int, default=16, help="requests that share forwards")
    parser.add_argument("--block-length", type=int, default=32)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--cache", choices=("none", "dual"), default="none")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, help="write the table as a Markdown fragment")
    arguments = parser.parse_args()
    rows = measure(arguments)
    command = (
        f"python -m benchmarks.decoding --problems {arguments.problems} --seed {arguments.seed} "
        f"--batch {arguments.batch} --max-tokens {arguments.max_tokens} "
        f"--cache {arguments.cache} --dtype {arguments.dtype} --threads {arguments.threads}"
    )
    text = (
        f"Built-in toy model, {arguments.problems} held-out problems (seed {arguments.seed}), raw prompts, block "
        f"{arguments.block_length}, max_tokens {arguments.max_tokens}, temperature 0, cache `{arguments.cache}`, "
        f"{arguments.dtype}, {arguments.batch} requests per batch, {arguments.threads} threads, "
        f"{cpu_name()}, {date.today()}.\n\n    {command}\n\n{table(rows)}\n"
    )
    print(text)
    if arguments.output:
        arguments.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
