"""Flags of `psd eval` and `psd calibrate`."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from typing import Final

from server.evaluation.tasks import BUILT_IN_PROBLEMS
from server.flags import FLAGS, Flag, whole
from server.settings import add_flags
from server.terminal.flags import WEIGHT_FLAGS, checked

BATCH: Final = 16
CONCURRENCY: Final = 8
BATCHED_TOKENS: Final = 2**16  # so many that drafts are not shed: what is measured must not depend on the load
MAX_TOKENS: Final = 128
PLACE_FLAGS: Final = ("block_length", "cache", "canvas_blocks")
MODEL_FLAGS: Final = (
    *("model", "tokenizer", "chat_template", *WEIGHT_FLAGS, "threads", "max_model_len", "max_num_batched_tokens"),
    *PLACE_FLAGS,
    "api_key",
)
SERVER_FLAGS: Final[tuple[Flag, ...]] = tuple(flag for flag in FLAGS if flag.name in MODEL_FLAGS)


def add_eval_flags(parser: argparse.ArgumentParser) -> None:
    """Of `psd eval`."""
    parser.add_argument(
        "--task", action="append", default=[], metavar="TASK",
        help="builtin, builtin:held-out-names, or a JSONL file; may be repeated (default: builtin)",
    )  # fmt: skip  # one flag, its text below it
    parser.add_argument(
        "--problems", type=checked(whole(1, 10**6)), metavar="N",
        help=f"at most so many per task (default: all of a file, {BUILT_IN_PROBLEMS} built-in ones)",
    )  # fmt: skip
    parser.add_argument(
        "--seed", type=checked(whole(0, 2**31)), default=2026, help="of the built-in problems (default: 2026)"
    )
    parser.add_argument(
        "--grid", action="append", default=[], metavar="GRID",
        help="ready-made grid (paper, main, temporal, depth, rules, sweep, quick) or a TOML or JSON file; may be "
        "repeated (default: quick, unless there is a --decoder)",
    )  # fmt: skip
    parser.add_argument(
        "--decoder", action="append", default=[], metavar="TEXT",
        help="one more decoder: [NAME=]POLICY[:SETTING=VALUE,…]; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--baseline", metavar="NAME", help="decoder to compare accuracy with (default: greedy, else the first)"
    )
    parser.add_argument(
        "--output", default="psd-eval", metavar="FOLDER", help="where results go, and answers as they come"
    )
    parser.add_argument("--restart", action="store_true", help="throw away the answers that are in the folder")
    parser.add_argument(
        "--allow-code-execution", action="store_true",
        help="run the Python that the model wrote, in a process with limits; else such problems are left out",
    )  # fmt: skip
    parser.add_argument(
        "--code-seconds", type=checked(whole(1, 600)), default=5, help="processor time of one answer (default: 5)"
    )
    parser.add_argument(
        "--extract", type=pattern, metavar="REGEX",
        help="finds the answer in the text: the last match, its first group if there is one",
    )  # fmt: skip
    _add_common(parser)


def add_calibrate_flags(parser: argparse.ArgumentParser) -> None:
    """Of `psd calibrate`."""
    parser.add_argument(
        "prompts", metavar="PROMPTS", help="file of prompts: one per line, or JSON objects as for psd eval"
    )
    parser.add_argument(
        "--output", default="psd-decoder.toml", metavar="FILE", help="settings for psd serve --decoder-config"
    )
    parser.add_argument(
        "--min-agreement", type=share, default=0.95,
        help="how alike the answers must stay to those of greedy, from 0 to 1 (default: 0.95); with reference answers, "
        "what must stay is accuracy within a point",
    )  # fmt: skip
    parser.add_argument(
        "--allow-code-execution", action="store_true", help="as for psd eval; else code is compared, not run"
    )
    _add_common(parser)


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--form", choices=("raw", "chat"), default="raw", help="continue the prompt, or answer it as a chat's message"
    )
    parser.add_argument("--system", help="system message of chats")
    parser.add_argument(
        "--template",
        help="prompt with {field} for a record's fields, {prompt} for what it would be without; @FILE reads it",
    )
    parser.add_argument("--stop", action="append", default=[], help="text that ends an answer; may be repeated")
    parser.add_argument(
        "--max-tokens", type=checked(whole(1, 2**31)), default=MAX_TOKENS, help=f"of an answer (default: {MAX_TOKENS})"
    )
    parser.add_argument("--url", help="running server to ask; absent: load the model here")
    parser.add_argument(
        "--concurrency", type=checked(whole(1, 4096)), default=CONCURRENCY,
        help=f"requests at a time to a server (default: {CONCURRENCY})",
    )  # fmt: skip
    parser.add_argument(
        "--batch", type=checked(whole(1, 65_536)),
        help=f"requests that share forwards here (default: {BATCH}; of psd calibrate: 1)",
    )  # fmt: skip
    add_flags(parser, SERVER_FLAGS)


def server_texts(given: argparse.Namespace) -> Mapping[str, list[str] | None]:
    """The texts of the server's own flags, for `settings.resolve`."""
    return {flag.name: getattr(given, flag.name) for flag in SERVER_FLAGS}


def pattern(text: str) -> re.Pattern[str]:
    """A regular expression."""
    try:
        return re.compile(text, re.DOTALL)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"must be a regular expression: {error}, got {text!r}") from None


def share(text: str) -> float:
    """A number in [0, 1]."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"must be a number between 0 and 1, got {text!r}")
    return value
