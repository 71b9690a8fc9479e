"""Four curves over the load, as an image. Needs matplotlib, from the extra `plots`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from server.bench.figures import LevelFigures, Spread
from server.bench.load import ClosedLoop
from server.bench.run import BenchResult

Pick = Callable[[LevelFigures], Spread | None]


def write_plot(result: BenchResult, path: Path) -> bool:
    """Write a PNG. False if matplotlib is not installed."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return False
    levels = [level.figures for level in result.levels]
    figure = Figure(figsize=(10, 7), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, 2)
    is_closed = isinstance(levels[0].load, ClosedLoop)
    for axis, title, pick in (
        (axes[0][0], "time to first text, s", lambda figures: figures.first_text),
        (axes[0][1], "end to end, s", lambda figures: figures.total),
        (axes[1][0], "between chunks, s", lambda figures: figures.inter_chunk),
    ):
        for name in ("p50", "p90", "p99"):
            axis.plot(*_points(levels, pick, name), marker="o", label=name)
        axis.set_title(title)
        axis.set_ylim(bottom=0)
        axis.legend()
    rates = [(figures.load.size, figures.output_tokens_per_second) for figures in levels]
    known = [(size, rate) for size, rate in rates if rate is not None]
    is_counted = bool(known)
    known = known or [(figures.load.size, figures.requests_per_second) for figures in levels]
    axes[1][1].plot([size for size, _ in known], [rate for _, rate in known], marker="o")
    axes[1][1].set_title("output tokens per second" if is_counted else "requests per second")
    axes[1][1].set_ylim(bottom=0)
    for axis in axes.flat:
        axis.set_xlabel("clients at once" if is_closed else "arrivals per second")
        axis.grid(visible=True, alpha=0.3)
    figure.suptitle(f"{result.model}, {result.settings.ask.endpoint}")
    figure.savefig(path, dpi=120)
    return True


def _points(levels: Sequence[LevelFigures], pick: Pick, name: str) -> tuple[list[float], list[float]]:
    known = [(figures.load.size, spread) for figures in levels if (spread := pick(figures)) is not None]
    return [size for size, _ in known], [float(getattr(spread, name)) for _, spread in known]
