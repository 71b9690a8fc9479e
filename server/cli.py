"""The `psd` command."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from psd_core.config import QUANTIZATION_NAMES
from psd_core.errors import CheckpointError, ConfigError
from server.bench.flags import DESCRIPTION as BENCH
from server.bench.flags import add_bench_flags
from server.checkpoints import cached_source, check_source
from server.cores import WAIT_POLICY
from server.evaluation.flags import add_calibrate_flags, add_eval_flags
from server.flags import DTYPES
from server.logs import configure_logging
from server.settings import add_flags, resolve
from server.terminal.flags import add_terminal_flags
from server.version import VERSION


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand. Exit status: 0 done, 1 failed, 2 wrong usage."""
    os.environ.setdefault(WAIT_POLICY, "PASSIVE")  # read when torch is imported, by commands that compute here
    parser = argparse.ArgumentParser(prog="psd", description="Inference server for diffusion language models.")
    parser.add_argument("--version", action="version", version=f"psd-server {VERSION}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    serve = commands.add_parser(
        "serve",
        help="serve a model over HTTP",
        description="Serve a model over HTTP, as OpenAI's API. Each flag can also be set by the variable in brackets.",
    )
    add_flags(serve)
    generate = commands.add_parser(
        "generate",
        help="answer one prompt in the terminal",
        description="Answer one prompt, by a model loaded here or by a server. The text goes to standard output.",
    )
    generate.add_argument("prompt", help="text to continue; - reads it from standard input")
    generate.add_argument("--chat", action="store_true", help="send it as a chat message instead")
    add_terminal_flags(generate)
    chat = commands.add_parser(
        "chat",
        help="chat in the terminal",
        description="A conversation, with a model loaded here or behind a server. Reads lines from standard input.",
    )
    add_terminal_flags(chat)
    evaluation = commands.add_parser(
        "eval",
        help="measure decoders over tasks",
        description="Measure a grid of decoders over tasks: accuracy, tokens per forward, time. Writes JSON, Markdown "
        "and plots; an interrupted run goes on when the same command is given again.",
    )
    add_eval_flags(evaluation)
    calibration = commands.add_parser(
        "calibrate",
        help="find decoder settings for your own prompts",
        description="Measure policies, thresholds and draft depths over your own prompts, with the model and hardware "
        "at hand, and write the fastest settings that change no answer for the worse.",
    )
    add_calibrate_flags(calibration)
    models = commands.add_parser("models", help="list the model families", description="List the model families.")
    models.add_argument("--markdown", action="store_true", help="as tables of Markdown")
    inspect = commands.add_parser(
        "inspect",
        help="say what a checkpoint is and whether it will load",
        description="Say what a checkpoint is, whether it will load and the memory it needs, without loading it. "
        "Exit status: 0 it will load, 1 it will not.",
    )
    inspect.add_argument("path", metavar="PATH", help="checkpoint folder, or the name of a downloaded hub model")
    inspect.add_argument("--tokenizer", metavar="PATH", help="folder of the tokenizer; absent: the checkpoint's own")
    inspect.add_argument("--dtype", choices=DTYPES, default="auto", help="as for psd serve")
    inspect.add_argument("--quantization", choices=QUANTIZATION_NAMES, default="none", help="as for psd serve")
    inspect.add_argument("--device", default="auto", help="as for psd serve")
    inspect.add_argument("--tensor-parallel-size", type=int, default=1, metavar="N", help="as for psd serve")
    bench = commands.add_parser("bench", help="measure a server that speaks OpenAI's API", description=BENCH)
    add_bench_flags(bench)
    given = parser.parse_args(arguments)
    try:
        status = _run(given)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read the output wants no more, as in `psd models | head`: what is still to be flushed goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return status


def _run(given: argparse.Namespace) -> int:
    match given.command:
        case "serve":
            return _serve({name: value for name, value in vars(given).items() if name != "command"})
        case "generate" | "chat" as command:
            from server.terminal import commands as terminal

            return terminal.generate(given) if command == "generate" else terminal.chat(given)
        case "eval":
            from server.evaluation.commands import evaluate

            return evaluate(given)
        case "calibrate":
            from server.evaluation.calibrate import calibrate

            return calibrate(given)
        case "models":
            from server.model_table import show_models

            print(show_models(as_markdown=given.markdown))
            return 0
        case "inspect":
            return _inspect(given)
        case "bench":
            from server.bench.command import bench as measure  # numpy, httpx and the plot's library

            return measure(given)
        case _:
            raise AssertionError(given.command)


def _serve(given: dict[str, list[str] | None]) -> int:
    try:
        settings = resolve(given)
        check_source(settings.model.source)
    except (ConfigError, CheckpointError) as error:
        print(f"psd serve: error: {error}", file=sys.stderr)
        return 2
    configure_logging(settings.log_level, settings.log_format)
    from server.run import run  # FastAPI is imported only by who serves

    return run(settings)


def _inspect(given: argparse.Namespace) -> int:
    num_ranks = given.tensor_parallel_size
    if num_ranks < 1:
        print(f"psd inspect: error: --tensor-parallel-size must be at least 1, got {num_ranks}", file=sys.stderr)
        return 2
    try:
        folder = cached_source(given.path)
        tokenizer_folder = folder if given.tokenizer is None else cached_source(given.tokenizer)
    except CheckpointError as error:
        print(f"psd inspect: error: {error}", file=sys.stderr)
        return 2
    from server.inspection import inspect  # torch is imported only by who looks at weights

    inspection = inspect(folder, tokenizer_folder, given.dtype, given.device, num_ranks, given.quantization)
    print(inspection.show())
    return 1 if inspection.faults else 0


if __name__ == "__main__":
    sys.exit(main())
