"""Flags of `psd bench`. Light: imported by every subcommand."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from server.flags import FLAGS, number, whole
from server.settings import add_flags
from server.terminal.flags import checked

DESCRIPTION: Final = (
    "Measure any server that speaks OpenAI's API: latencies and throughput over clients at once, or over arrivals per "
    "second. Exit status: 0 done, 1 nothing was answered, 2 wrong usage, 130 interrupted (what was measured is kept)."
)


def add_bench_flags(parser: argparse.ArgumentParser) -> None:
    """Everything `psd bench` takes."""
    parser.add_argument("--url", default="http://localhost:8000", help="the server (default: http://localhost:8000)")
    parser.add_argument("--model", help="name to ask for; absent: the first one that the server lists")
    parser.add_argument("--endpoint", choices=("completions", "chat"), default="completions", help="what to ask")
    load = parser.add_mutually_exclusive_group()
    load.add_argument(
        "--concurrency",
        type=_several(whole(1, 10_000)),
        help="clients that each send when the last answer is there, one level per number (default: 1,2,4,8)",
    )
    load.add_argument(
        "--rate",
        type=_several(number(0.001, 100_000)),
        help="requests per second at random moments (Poisson), answered or not, one level per number",
    )
    parser.add_argument("--requests", type=checked(whole(1, 10**7)), default=64, help="per level (default: 64)")
    parser.add_argument(
        "--warm-up",
        type=checked(whole(0, 10**6)),
        default=4,
        help="requests before each level, not measured (default: 4)",
    )
    parser.add_argument(
        "--prompts", type=Path, metavar="FILE", help="JSON lines: texts, or objects with prompt or messages"
    )
    parser.add_argument(
        "--words",
        type=checked(whole(1, 10**6)),
        default=64,
        help="length of random prompts without a file (default: 64)",
    )
    parser.add_argument("--max-tokens", type=checked(whole(1, 2**31)), default=64, help="of an answer (default: 64)")
    parser.add_argument(
        "--extra-body",
        type=_fields,
        default={},
        metavar="JSON",
        help='more fields of every request, like {"ignore_eos": true}',
    )
    parser.add_argument(
        "--seed", type=checked(whole(0, 2**63 - 1)), default=0, help="of prompts and arrivals (default: 0)"
    )
    parser.add_argument(
        "--timeout", type=checked(number(0.1, 86_400)), default=300.0, help="seconds for one answer (default: 300)"
    )
    parser.add_argument(
        "--max-connections",
        type=checked(whole(1, 60_000)),
        default=1024,
        help="beyond it requests wait here, and their waiting is measured (default: 1024)",
    )
    parser.add_argument(
        "--output", type=Path, help="files to write, without .json, .md, .png (default: psd-bench-TIME)"
    )
    add_flags(parser, [flag for flag in FLAGS if flag.name == "api_key"])


def _several(parse: Callable[[str], object]) -> Callable[[str], list[object]]:
    """A parser of numbers with commas between them."""
    one = checked(parse)
    return lambda text: [one(part) for part in text.split(",")]


def _fields(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise argparse.ArgumentTypeError(f"must be JSON ({error}), got {text[:80]!r}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"must be a JSON object, got {text[:80]!r}")
    return value
