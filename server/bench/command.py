"""`psd bench`: settings from flags, progress on standard error, the table on standard output, files beside."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from datetime import datetime
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from psd_core.errors import ConfigError
from server.bench.load import ClosedLoop, Load, OpenLoop
from server.bench.plot import write_plot
from server.bench.prompts import read_prompts
from server.bench.report import to_json, to_markdown
from server.bench.run import BenchResult, BenchSettings, run_bench, total_requests
from server.bench.target import Ask, UnreachableError
from server.outputs import check_output
from server.settings import client_key
from server.terminal.canvas import harmless
from server.terminal.ending import FAILED, INTERRUPTED, WRONG_USAGE, fail

OWN_FIELDS: Final = ("model", "prompt", "messages", "stream", "stream_options", "n", "best_of", "max_tokens")


def bench(given: argparse.Namespace) -> int:
    """Measure, show and write."""
    try:
        settings = _settings(given)
        progress = _Progress(settings)
        with progress:
            result = asyncio.run(run_bench(settings, progress.show))
    except ConfigError as error:
        return fail("bench", error, WRONG_USAGE)
    except UnreachableError as error:
        return fail("bench", error, FAILED)
    except KeyboardInterrupt:
        return INTERRUPTED
    if not result.levels:
        return INTERRUPTED
    table = to_markdown(result)
    print(harmless(table), end="")
    try:
        _write(result, table)
    except OSError as error:
        return fail("bench", error, FAILED)
    if result.is_interrupted:
        return INTERRUPTED
    return 0 if any(level.figures.num_answered for level in result.levels) else 1


def _files(output: Path) -> tuple[Path, Path, Path]:
    """For figures, table and curves."""
    figures, table, curves = (output.with_name(f"{output.name}{ending}") for ending in (".json", ".md", ".png"))
    return figures, table, curves


def _write(result: BenchResult, table: str) -> None:
    *written, curves = _files(result.settings.output)
    written[0].write_text(json.dumps(to_json(result), indent=1), encoding="utf-8")
    written[1].write_text(table, encoding="utf-8")
    if write_plot(result, curves):
        written.append(curves)
    else:
        print("psd bench: no plot: it needs matplotlib (pip install 'psd-server[plots]')", file=sys.stderr)
    print(f"psd bench: wrote {', '.join(map(str, written))}", file=sys.stderr)


class _Progress:
    """A bar in a terminal, a line per level elsewhere."""

    def __init__(self, settings: BenchSettings) -> None:
        self._console = Console(stderr=True)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._num_requests = settings.num_requests
        self._task = self._bar.add_task("warming up", total=total_requests(settings))
        self._before = -settings.num_requests  # requests of the levels before this one

    def __enter__(self) -> None:
        self._bar.start()

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def show(self, load: Load, num_done: int) -> None:
        """See run.Progress."""
        if not num_done:
            self._before += self._num_requests
            if not self._console.is_terminal:
                self._console.print(f"psd bench: {load.label}, {self._num_requests} requests", highlight=False)
        self._bar.update(self._task, description=load.label, completed=self._before + num_done)


def _settings(given: argparse.Namespace) -> BenchSettings:
    """ConfigError for whatever argparse cannot see."""
    output = given.output or Path(f"psd-bench-{datetime.now():%Y%m%d-%H%M%S}")
    for path in _files(output) if output.name else (output,):
        check_output(path)
    for name in OWN_FIELDS:
        if name in given.extra_body:
            raise ConfigError("extra_body", f"--extra-body must not hold {name}: psd bench sets it")
    loads: list[Load] = [OpenLoop(rate) for rate in given.rate or ()]
    if not loads:
        loads = [ClosedLoop(count) for count in given.concurrency or (1, 2, 4, 8)]
    is_chat = given.endpoint == "chat"
    most = max((load.concurrency for load in loads if isinstance(load, ClosedLoop)), default=0)
    if most > given.max_connections:
        raise ConfigError("max_connections", f"--max-connections must be at least {most}, got {given.max_connections}")
    return BenchSettings(
        url=given.url,
        key=client_key({"api_key": given.api_key}),
        model=given.model,
        ask=Ask(given.model or "", given.endpoint, given.max_tokens, given.extra_body, given.timeout),
        loads=tuple(loads),
        num_requests=given.requests,
        num_warm=given.warm_up,
        prompts=() if given.prompts is None else tuple(read_prompts(given.prompts, is_chat=is_chat)),
        num_words=given.words,
        seed=given.seed,
        max_connections=given.max_connections,
        output=output,
    )
