"""A run's results as Markdown tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from server.evaluation.problem import ALL
from server.evaluation.results import RunResults
from server.evaluation.statistics import Interval
from server.evaluation.summary import Summary


def to_markdown(results: RunResults) -> str:
    """What was measured how, then the tables."""
    parts = [_head(results), _main_table(results)]
    if any(summary.accuracy for summary in results.summaries):
        parts += [_task_table(results.summaries), _areas(results), _losses(results)]
    if any(sum(summary.accepted_depths[1:]) for summary in results.summaries):
        parts.append(_depth_table(results.summaries))
    return "\n\n".join(part for part in parts if part) + "\n"


def _head(results: RunResults) -> str:
    settings = ", ".join(f"{name} {_setting(value)}" for name, value in results.settings.items() if value is not None)
    machine = ", ".join(f"{name} {value}" for name, value in results.machine.items())
    lines = [f"Measured with {settings}. {machine}.", "", f"    {results.command}"]
    if results.notes:
        lines += ["", *(f"* {note}" for note in results.notes)]
    return "\n".join(lines)


def _setting(value: object) -> str:
    if isinstance(value, dict):
        return "(" + ", ".join(f"{name} {_setting(entry)}" for name, entry in value.items()) + ")"
    if isinstance(value, list | tuple):
        return ", ".join(map(_setting, value)) or "none"
    return str(value)


def _main_table(results: RunResults) -> str:
    has_accuracy = any(summary.accuracy for summary in results.summaries)
    head = ["decoder"]
    if has_accuracy:
        head += ["accuracy (95 %)", f"− {results.baseline}, points (95 %)", "loses a point"]
    head += ["same output", "TPF", "TPF without refreshes", "forwards", "rows ÷ forward", "drafted tokens that held"]
    head += ["wall s", "tokens ÷ s"]
    rows = []
    for summary in results.summaries:
        row = [summary.name]
        if has_accuracy:
            row += [_share(summary.accuracy[ALL]), *_against(summary)]
        same = summary.against_undrafted
        held = summary.accepted_tokens / summary.drafted_tokens if summary.drafted_tokens else None
        row += [
            "–" if same is None else f"{same.same_output:.3f}",
            f"{summary.tpf:.2f}",
            f"{summary.tpf_without_refreshes:.2f}",
            str(summary.forwards),
            f"{summary.rows_per_forward:.2f}",
            "–" if held is None else f"{held:.2f}",
            f"{summary.seconds:.1f}",
            f"{summary.tokens_per_second:.1f}",
        ]
        rows.append(row)
    return table(head, rows)


def _against(summary: Summary) -> list[str]:
    comparison = summary.against_baseline
    if comparison is None:
        return ["–", "–"]
    difference = comparison.differences[ALL]
    shown = f"{100 * difference.value:+.1f} ({100 * difference.low:+.1f} to {100 * difference.high:+.1f})"
    return [shown, comparison.loses_a_point]


def _task_table(summaries: Sequence[Summary]) -> str:
    tasks = [task for task in summaries[0].accuracy if task != ALL]
    if len(tasks) < 2:
        return ""
    rows = [[summary.name, *(_share(summary.accuracy[task]) for task in tasks)] for summary in summaries]
    return "Accuracy per task (95 %):\n\n" + table(["decoder", *tasks], rows)


def _areas(results: RunResults) -> str:
    rows = [[area.series, f"{area.value:.1f}", str(len(area.points))] for area in results.areas]
    return (
        "AUP, accuracy under parallelism, α = 3 (d3LLM, arXiv 2601.07568): the area under accuracy in percent over "
        "TPF, weighted by exp(−α(1 − y/y_max)); points more than 5 points below the first of their series are left "
        "out. A series of one cell has TPF × accuracy.\n\n" + table(["series", "AUP", "cells"], rows)
    )


def _losses(results: RunResults) -> str:
    losses = results.losses
    if not losses.num_pairs:
        return ""
    return (
        f"At D = 3, {losses.num_lost} of {losses.num_pairs} (decoder, task) pairs lose more than a point against the "
        f"policy without drafts; {losses.num_proven} of them beyond their interval."
    )


def _depth_table(summaries: Sequence[Summary]) -> str:
    drafted = [summary for summary in summaries if len(summary.accepted_depths) > 1]
    deepest = max(len(summary.accepted_depths) for summary in drafted)
    rows = []
    for summary in drafted:
        total = sum(summary.accepted_depths)
        counts = [*summary.accepted_depths, *[None] * (deepest - len(summary.accepted_depths))]
        rows.append([summary.name, *("" if count is None else f"{count / max(1, total):.3f}" for count in counts)])
    return (
        "Share of denoising forwards by the depth of the accepted draft (0: none held; of `lopa`, 1: a branch won):\n\n"
        + table(["decoder", *map(str, range(deepest))], rows)
    )


def _share(interval: Interval) -> str:
    return f"{interval.value:.3f} ({interval.low:.3f}–{interval.high:.3f})"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
