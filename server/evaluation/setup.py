"""From given flags to what a run needs: who answers, what is asked in common, and what can be judged."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from psd_core.errors import ConfigError
from server.body import JsonObject
from server.evaluation.ask import Ask
from server.evaluation.flags import BATCHED_TOKENS, PLACE_FLAGS, server_texts
from server.evaluation.formats import Form
from server.evaluation.problem import Problem
from server.evaluation.source import Source
from server.settings import Settings, client_key, resolve


def make_ask(given: argparse.Namespace, settings: Settings) -> Ask:
    """What all requests have in common. ConfigError if flags do not fit each other."""
    if given.system is not None and given.form != "chat":
        raise ConfigError("system", "--system needs --form chat")
    decoder: JsonObject = {
        name: getattr(settings.requests.decoder, name) for name in PLACE_FLAGS if getattr(given, name) is not None
    }
    return Ask(given.form, given.max_tokens, tuple(given.stop), given.system, decoder)


def make_form(given: argparse.Namespace, *, needs_reference: bool) -> Form:
    """How files become prompts. ConfigError if the template cannot be read."""
    template = given.template
    if template is not None and template.startswith("@"):
        try:
            template = Path(template[1:]).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError("template", f"--template {given.template}: {error}") from None
    return Form(template, needs_reference)


def read_settings(given: argparse.Namespace) -> Settings:
    """The server's settings behind the flags. ConfigError names flag, limit and value."""
    return resolve(server_texts(given))


def make_source(given: argparse.Namespace, settings: Settings, batch: int) -> Source:
    """Who answers. SourceError if there is nobody."""
    if given.url is not None:
        from server.evaluation.remote import RemoteSource
        from server.terminal.remote import RemoteModel

        remote = RemoteModel(given.url, client_key(server_texts(given)), given.model[-1] if given.model else None)
        return RemoteSource(remote, given.url, given.concurrency)
    from server.evaluation.local import LocalSource  # torch is imported only by who needs it

    budget = settings.engine.max_num_batched_tokens if given.max_num_batched_tokens is not None else BATCHED_TOKENS
    # What an earlier cell left in a prefix cache would make the later one look cheaper.
    engine = replace(settings.engine, max_num_seqs=batch, max_num_batched_tokens=budget, prefix_cache=False)
    return LocalSource(replace(settings, engine=engine))


def without_code(problems: Sequence[Problem], *, is_allowed: bool) -> tuple[list[Problem], str | None]:
    """The problems that can be judged, and a note on those left out because their answers would have to be run."""
    if is_allowed:
        return list(problems), None
    kept = [problem for problem in problems if not problem.runs_code]
    num_left_out = len(problems) - len(kept)
    if not num_left_out:
        return kept, None
    return kept, (
        f"{num_left_out} of {len(problems)} problems are left out: their answers are Python, which is run only with "
        "--allow-code-execution"
    )


def run_settings(source: Source, ask: Ask) -> JsonObject:
    """What must stay the same for answers to stand in one table."""
    return {
        **source.facts,
        "form": ask.form,
        "max_tokens": ask.max_tokens,
        "stop": list(ask.stop) or None,
        "system": ask.system,
        "decoder": ask.decoder or None,
    }
