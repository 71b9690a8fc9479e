"""A run's result as JSON and as a table of Markdown."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from server.bench.figures import LevelFigures, Spread
from server.bench.run import BenchResult, BenchSettings, Level, describe
from server.version import VERSION


def to_json(result: BenchResult) -> dict[str, Any]:
    """Everything: settings, figures and single samples. Seconds throughout; the key is left out."""
    settings = result.settings
    return {
        "psd_bench": VERSION,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "measured_from": {"system": platform.platform(), "cores": os.cpu_count(), "python": platform.python_version()},
        "url": _address(settings.url),
        "model": result.model,
        "endpoint": settings.ask.endpoint,
        "prompts": len(settings.prompts) or f"{settings.num_words} random words",
        "max_tokens": settings.ask.max_tokens,
        "extra_body": dict(settings.ask.extra),
        "requests_per_level": settings.num_requests,
        "warm_up_per_level": settings.num_warm,
        "seed": settings.seed,
        "max_connections": settings.max_connections,
        "timeout_seconds": settings.ask.timeout,
        "usage_options": list(result.usage_options),
        "is_interrupted": result.is_interrupted,
        "levels": [_level(level) for level in result.levels],
    }


def _level(level: Level) -> dict[str, Any]:
    figures = asdict(level.figures) | {"load": describe(level.figures.load)}
    return figures | {"samples": [asdict(sample) for sample in level.samples]}


def to_markdown(result: BenchResult) -> str:
    """A table with a row per level, what was asked, and what a reader must know."""
    settings = result.settings
    lines = [
        f"{_address(settings.url)}, model {result.model}, {settings.ask.endpoint}, {_prompts(settings)}, at most "
        f"{settings.ask.max_tokens} tokens; {settings.num_requests} requests per level after {settings.num_warm} to "
        f"warm up; seed {settings.seed}; {datetime.now(UTC):%Y-%m-%d}",
        "",
        "| load | answered | errors | req/s | tok/s | TTFT p50 / p90 / p99, ms | ICL p50 / p99, ms | "
        "ITL p50 / p99, ms | TPOT p50 / p99, ms | E2E mean / p50 / p90 / p99, s | tokens out | TPF |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
        *(_row(level.figures) for level in result.levels),
        "",
        "TTFT: until the first text. ICL: between chunks with text. ITL: ICL ÷ tokens of the chunk. TPOT: "
        "(E2E − TTFT) ÷ (tokens − 1), of answers in several chunks. E2E: until the end. TPF: tokens ÷ forwards. "
        "Tokens are counted by the server.",
    ]
    if result.is_interrupted:
        lines += ["", "The run was interrupted: what stands here was measured before."]
    for level in result.levels:
        lines += [f"* {level.figures.load.label}: {note}" for note in level.figures.notes]
        lines += [f"* {level.figures.load.label}: {count} × {kind}" for kind, count in level.figures.errors.items()]
    return "\n".join(lines) + "\n"


def _address(url: str) -> str:
    """Without a user and a password."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _prompts(settings: BenchSettings) -> str:
    return f"{len(settings.prompts)} prompts" if settings.prompts else f"{settings.num_words} random words"


def _row(figures: LevelFigures) -> str:
    forward = figures.mean_tokens_per_forward
    rate = figures.output_tokens_per_second
    cells = (
        figures.load.label,
        f"{figures.num_answered} of {figures.num_begun}",
        str(sum(figures.errors.values())),
        f"{figures.requests_per_second:.2f}",
        "–" if rate is None else f"{rate:.1f}",
        _shown(figures.first_text, ("p50", "p90", "p99"), 1000, 0),
        _shown(figures.inter_chunk, ("p50", "p99"), 1000, 0),
        _shown(figures.inter_token, ("p50", "p99"), 1000, 1),
        _shown(figures.per_output_token, ("p50", "p99"), 1000, 1),
        _shown(figures.total, ("mean", "p50", "p90", "p99"), 1, 2),
        _shown(figures.output_tokens, ("mean",), 1, 0),
        "–" if forward is None else f"{forward:.2f}",
    )
    return f"| {' | '.join(cells)} |"


def _shown(spread: Spread | None, names: tuple[str, ...], factor: float, digits: int) -> str:
    if spread is None:
        return "–"
    return " / ".join(f"{getattr(spread, name) * factor:.{digits}f}" for name in names)
