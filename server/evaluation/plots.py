"""A run's results as pictures, with matplotlib (extra `plots`).

The background is transparent and every colour of a middle lightness, so that one file reads on white and on black.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from server.evaluation.problem import ALL
from server.evaluation.results import PAPER_DEPTH, RunResults
from server.evaluation.summary import Summary

INK: Final = "#7d8590"
COLORS: Final = (
    "#3b82f6", "#e0592a", "#2aa876", "#b45ad1", "#c98a00", "#d6457f", "#1f9fb5", "#7a8f1e", "#8d6be8", "#a8714a",
)  # fmt: skip  # a palette
MARKERS: Final = "osD^vPX*<"  # fewer than colours: no two of 90 series look alike
STYLE: Final[dict[Any, Any]] = {
    "axes.edgecolor": INK, "axes.labelcolor": INK, "axes.titlecolor": INK, "text.color": INK, "xtick.color": INK,
    "ytick.color": INK, "grid.color": INK, "grid.alpha": 0.25, "axes.grid": True, "axes.axisbelow": True,
    "axes.facecolor": "none", "figure.facecolor": "none", "savefig.transparent": True, "legend.frameon": False,
    "font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "figure.dpi": 150,
}  # fmt: skip  # a table of settings


def draw_all(results: RunResults, folder: Path) -> list[Path]:
    """Every picture that the results suffice for, as PNG files; their paths."""
    pictures: dict[str, Callable[[RunResults], Figure | None]] = {
        "pareto": pareto,
        "depth": depth,
        "rules": rules,
        "acceptance": acceptance,
        "progress": progress,
        "aup": areas,
    }
    paths: list[Path] = []
    with mpl.rc_context(STYLE):
        for name, draw in pictures.items():
            figure = draw(results)
            if figure is not None:
                paths.append(folder / f"{name}.png")
                figure.savefig(paths[-1])
    return paths


def pareto(results: RunResults) -> Figure | None:
    """Accuracy against tokens per forward; the cells of a series are connected."""
    scored = [summary for summary in results.summaries if summary.accuracy]
    if not scored:
        return None
    figure, axes = _one(7.2, 4.6)
    for index, series in enumerate(dict.fromkeys(summary.series for summary in scored)):
        points = sorted((one for one in scored if one.series == series), key=lambda one: one.tpf)
        accuracy = [point.accuracy[ALL] for point in points]
        axes.errorbar(
            [point.tpf for point in points],
            [100 * share.value for share in accuracy],
            yerr=[
                [100 * (share.value - share.low) for share in accuracy],
                [100 * (share.high - share.value) for share in accuracy],
            ],
            color=COLORS[index % len(COLORS)],
            marker=MARKERS[index % len(MARKERS)],
            markersize=5,
            linewidth=1.4,
            elinewidth=0.5,
            capsize=0,
            label=series,
        )
    axes.set_xlabel("tokens per forward")
    axes.set_ylabel("accuracy, % (bars: 95 %)")
    figure.legend(loc="outside right upper", fontsize=7)
    return figure


def depth(results: RunResults) -> Figure | None:
    """Tokens per forward and accuracy against draft depth, a line per policy and rule; depth 0 is the policy alone."""
    lines = _depth_lines(results.summaries)
    if not lines:
        return None
    figure, axes = _many(8.4, 3.8, 2, 1)
    for index, (series, points) in enumerate(lines.items()):
        depths = [depth for depth, _ in points]
        color, marker = COLORS[index % len(COLORS)], MARKERS[index % len(MARKERS)]
        axes[0].plot(depths, [one.tpf for _, one in points], color=color, marker=marker, markersize=4, label=series)
        scored = [(depth, one.accuracy_of_all) for depth, one in points if one.accuracy_of_all is not None]
        shares = [100 * share for _, share in scored]
        axes[1].plot([depth for depth, _ in scored], shares, color=color, marker=marker, markersize=4)
    for one, label in zip(axes, ("tokens per forward", "accuracy, %"), strict=True):
        one.set_xlabel("draft depth D")
        one.set_ylabel(label)
    figure.legend(loc="outside lower center", ncols=3, fontsize=7)
    return figure


def _depth_lines(summaries: Sequence[Summary]) -> dict[str, list[tuple[int, Summary]]]:
    """(depth, cell) per series with more than one depth, the policy alone in front if the grid has it."""
    by_name = {summary.name: summary for summary in summaries}
    lines: dict[str, list[tuple[int, Summary]]] = {}
    for summary in summaries:
        depth = summary.settings.get("draft_depth")
        if isinstance(depth, int) and depth and summary.settings.get("policy") != "lopa":
            lines.setdefault(summary.series, []).append((depth, summary))
    kept: dict[str, list[tuple[int, Summary]]] = {}
    for series, points in lines.items():
        if len({depth for depth, _ in points}) < 2:
            continue
        undrafted = points[0][1].against_undrafted
        alone = [(0, by_name[undrafted.name])] if undrafted is not None else []
        kept[series] = alone + sorted(points, key=lambda point: point[0])
    return kept


def rules(results: RunResults) -> Figure | None:
    """Tokens per forward of every acceptance rule and increment at one depth, with the accuracy above each bar."""
    tables: dict[str, dict[str, dict[str, Summary]]] = {}  # policy, increment, rule
    for summary in results.summaries:
        settings = summary.settings
        if settings.get("draft_depth") == PAPER_DEPTH and settings.get("policy") != "lopa":
            row = tables.setdefault(_policy(summary), {}).setdefault(str(settings["draft_increment"]), {})
            row.setdefault(str(settings["acceptance"]), summary)
    policy = max(tables, key=lambda name: len(tables[name]), default="")
    table = tables.get(policy, {})
    if len(table) < 2:
        return None
    names = list(dict.fromkeys(rule for row in table.values() for rule in row))
    figure, axes = _one(6.4, 3.8)
    width = 0.8 / len(names)
    for index, rule in enumerate(names):
        places = [place + (index - (len(names) - 1) / 2) * width for place in range(len(table))]
        heights = [row[rule].tpf if rule in row else 0.0 for row in table.values()]
        bars = axes.bar(places, heights, width * 0.92, color=COLORS[index], label=rule)
        shares = [row[rule].accuracy_of_all if rule in row else None for row in table.values()]
        labels = ["" if share is None else f"{100 * share:.1f}" for share in shares]
        axes.bar_label(bars, labels, fontsize=7, padding=2)
    axes.set_xticks(range(len(table)), list(table))
    axes.set_xlabel(f"positions per draft over {policy}; above the bars: accuracy, %")
    axes.set_ylabel("tokens per forward")
    figure.legend(loc="outside right upper", title="acceptance")
    return figure


def _policy(summary: Summary) -> str:
    """The policy with its own numbers."""
    numbers = (f"{summary.settings.get(name)}" for name in ("threshold", "k", "factor", "gamma"))
    return " ".join([str(summary.settings["policy"]), *(number for number in numbers if number != "None")])


def acceptance(results: RunResults) -> Figure | None:
    """Share of denoising forwards whose accepted draft is at least so deep: the deepest cell of every series."""
    deepest: dict[str, Summary] = {}
    for summary in results.summaries:
        if len(summary.accepted_depths) > 1 and summary.settings.get("policy") != "lopa":
            before = deepest.get(summary.series)
            if before is None or len(summary.accepted_depths) > len(before.accepted_depths):
                deepest[summary.series] = summary
    if not deepest:
        return None
    figure, axes = _one(6.8, 3.8)
    for index, (series, summary) in enumerate(deepest.items()):
        counts = summary.accepted_depths
        shares = [sum(counts[depth:]) / max(1, sum(counts)) for depth in range(1, len(counts))]
        color, marker = COLORS[index % len(COLORS)], MARKERS[index % len(MARKERS)]
        axes.plot(range(1, len(counts)), shares, color=color, marker=marker, markersize=4, label=series)
    axes.set_xlabel("draft depth d")
    axes.set_ylabel("forwards that accept depth ≥ d")
    axes.set_ylim(0, 1)
    figure.legend(loc="outside right upper", fontsize=7)
    return figure


def progress(results: RunResults) -> Figure | None:
    """Share of positions decided by accepted drafts (temporal), the rest by the policy, over the course of a block."""
    chosen = [
        summary
        for summary in results.summaries
        if summary.settings.get("draft_depth") == PAPER_DEPTH and sum(summary.temporal_deciles) > 0
    ][:6]
    if not chosen:
        return None
    columns = min(3, len(chosen))
    rows = -(-len(chosen) // columns)
    figure, grid = _many(3.0 * columns, 2.6 * rows, columns, rows)
    places = range(10)
    for axes, summary in zip(grid, chosen, strict=False):
        totals = [
            max(1, ours + theirs)
            for ours, theirs in zip(summary.spatial_deciles, summary.temporal_deciles, strict=True)
        ]
        spatial = [count / total for count, total in zip(summary.spatial_deciles, totals, strict=True)]
        temporal = [count / total for count, total in zip(summary.temporal_deciles, totals, strict=True)]
        axes.bar(places, spatial, 0.9, color=COLORS[0], label="spatial: the policy")
        axes.bar(places, temporal, 0.9, bottom=spatial, color=COLORS[1], label="temporal: accepted drafts")
        axes.set_title(summary.name, fontsize=7)
        axes.set_ylim(0, 1)
        axes.set_xticks(places, [str(place + 1) for place in places], fontsize=6)
    for axes in grid[len(chosen) :]:
        axes.set_visible(False)
    figure.supxlabel("tenth of the block, in order of decision", fontsize=8)
    figure.supylabel("share of positions", fontsize=8)
    handles, labels = grid[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=2, fontsize=7)
    return figure


def areas(results: RunResults) -> Figure | None:
    """AUP per series."""
    found = results.areas
    if not found:
        return None
    figure, axes = _one(6.4, 0.9 + 0.28 * len(found))
    names = [f"{area.series} ({len(area.points)})" for area in found]
    bars = axes.barh(names, [area.value for area in found], color=COLORS[0])
    axes.bar_label(bars, [f"{area.value:.0f}" for area in found], fontsize=7, padding=2)
    axes.invert_yaxis()
    axes.set_xlabel("AUP, α = 3 (in brackets: cells of the series)")
    return figure


def _one(width: float, height: float) -> tuple[Figure, Axes]:
    """A figure with one pair of axes; without pyplot, whose state is global. Inches."""
    figure, (axes,) = _many(width, height, 1, 1)
    return figure, axes


def _many(width: float, height: float, columns: int, rows: int) -> tuple[Figure, list[Axes]]:
    """A figure with axes in rows. Inches."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, list(figure.subplots(rows, columns, squeeze=False).ravel())
