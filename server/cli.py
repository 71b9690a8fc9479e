"""The `psd` command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from psd_core.errors import CheckpointError, ConfigError
from server.checkpoints import check_source
from server.logs import configure_logging
from server.settings import add_flags, resolve
from server.version import VERSION


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand. Exit status: 0 done, 1 failed, 2 wrong usage."""
    parser = argparse.ArgumentParser(prog="psd", description="Inference server for diffusion language models.")
    parser.add_argument("--version", action="version", version=f"psd-server {VERSION}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    serve = commands.add_parser(
        "serve",
        help="serve a model over HTTP",
        description="Serve a model over HTTP, as OpenAI's API. Each flag can also be set by the variable in brackets.",
    )
    add_flags(serve)
    given = parser.parse_args(arguments)
    match given.command:
        case "serve":
            return _serve({name: value for name, value in vars(given).items() if name != "command"})
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


if __name__ == "__main__":
    sys.exit(main())
