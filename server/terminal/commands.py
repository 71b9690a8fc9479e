"""`psd generate` and `psd chat`: ask, show the answer while it comes, say what it cost."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

from rich.console import Console
from rich.live import Live
from rich.text import Text

from psd_core.errors import ConfigError
from server.body import JsonObject
from server.settings import Settings, client_key, resolve
from server.terminal.canvas import CanvasState, draw, harmless
from server.terminal.ending import FAILED, INTERRUPTED, WRONG_USAGE, fail
from server.terminal.flags import request_fields, server_texts
from server.terminal.remote import RemoteModel
from server.terminal.source import CHAT, COMPLETIONS, Ask, Source, SourceError

GENERATE_MAX_TOKENS: Final = 256
REDRAWS_PER_SECOND: Final = 20
HELP: Final = "/new starts a new conversation, /quit ends; Ctrl-C stops an answer"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a stream came to."""

    text: str
    figures: JsonObject
    num_tokens: int


class Screen:
    """Shows answers: text on standard output, everything else on standard error."""

    def __init__(self, *, is_watching: bool) -> None:
        self.is_watching = is_watching
        self._out = Console(highlight=False, markup=False, soft_wrap=True)
        self._err = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)

    def show(self, source: Source, path: str, body: JsonObject) -> Answer:
        """Stream one answer to the screen."""
        return self._watch(source, path, body) if self.is_watching else self._write(source, path, body)

    def sum_up(self, answer: Answer) -> None:
        """One line of figures, where they do not disturb the text."""
        figures: Any = answer.figures
        if not figures:
            self.note(f"{answer.num_tokens} tokens; the server told no figures of the decoding")
            return
        self._err.print(
            f"{answer.num_tokens} tokens · {figures['forwards']} forwards · "
            f"{figures['tokens_per_forward']:.2f} tokens per forward · accepted depth "
            f"{figures['mean_accepted_depth']:.2f} · {figures['decode_seconds']:.2f} s",
            style="dim",
        )

    def note(self, text: str) -> None:
        """A line of ours."""
        self._err.print(harmless(text), style="dim")

    def ask(self) -> str | None:
        """A line from the user; None at the end of the input."""
        try:
            return input("> " if sys.stdin.isatty() else "")
        except EOFError:
            return None

    def _write(self, source: Source, path: str, body: JsonObject) -> Answer:
        record = _Record()
        with closing(source.stream(path, body)) as chunks:
            for chunk in chunks:
                text = record.take(chunk)
                sys.stdout.write(harmless(text) if sys.stdout.isatty() else text)
                sys.stdout.flush()
        sys.stdout.write("\n")
        return record.answer

    def _watch(self, source: Source, path: str, body: JsonObject) -> Answer:
        record, state = _Record(), CanvasState()
        # Folded at the terminal's width: a console with soft wrapping would cut every line there instead.
        live = Live(console=Console(highlight=False, markup=False), refresh_per_second=REDRAWS_PER_SECOND)
        with live, closing(source.stream(path, body)) as chunks:
            for chunk in chunks:
                record.take(chunk)
                if state.take(chunk):
                    live.update(draw(state))
            if state.length:
                state.finish(record.answer.num_tokens or state.length)
                live.update(draw(state))
        self._out.print()
        self._out.print(Text(harmless(record.answer.text)))
        return record.answer


class _Record:
    """Text and figures of one stream."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._figures: JsonObject = {}
        self._num_tokens = 0

    def take(self, chunk: JsonObject) -> str:
        """The text of a chunk."""
        fields: Any = chunk
        psd = fields.get("psd") or {}
        if "forwards" in psd:
            self._figures = psd
        if fields.get("usage"):
            self._num_tokens = fields["usage"]["completion_tokens"]
        text = "".join(_text_of(choice) for choice in fields["choices"])
        self._texts.append(text)
        return text

    @property
    def answer(self) -> Answer:
        return Answer("".join(self._texts), self._figures, self._num_tokens)


def _text_of(choice: dict[str, Any]) -> str:
    return str(choice["text"] if "text" in choice else choice["delta"].get("content") or "")


def generate(given: argparse.Namespace) -> int:
    """One answer. Exit status: 0 done, 1 failed, 2 wrong usage, 130 stopped."""
    try:
        source, ask = _prepare(given)
        screen = Screen(is_watching=given.watch)
        prompt = sys.stdin.read() if given.prompt == "-" else given.prompt
        if given.chat or given.system is not None:
            turns: list[JsonObject] = [{"role": "user", "content": prompt}]
            answer = screen.show(source, CHAT, ask.chat(source.model, turns, is_watched=given.watch))
        else:
            answer = screen.show(source, COMPLETIONS, ask.completion(source.model, prompt, is_watched=given.watch))
        screen.sum_up(answer)
    except ConfigError as error:
        return fail("generate", error, WRONG_USAGE)
    except SourceError as error:
        return fail("generate", error, FAILED)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # whoever read the text has heard enough; at exit Python must not write to it again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0


def chat(given: argparse.Namespace) -> int:
    """A conversation until the input ends. Exit status: 0 ended, 1 failed, 2 wrong usage."""
    try:
        source, ask = _prepare(given)
    except ConfigError as error:
        return fail("chat", error, WRONG_USAGE)
    except SourceError as error:
        return fail("chat", error, FAILED)
    except KeyboardInterrupt:  # while the model is loaded
        return INTERRUPTED
    screen = Screen(is_watching=given.watch)
    screen.note(f"{source.model}: {HELP}")
    try:
        return _converse(source, ask, screen)
    except KeyboardInterrupt:
        return 0


def _converse(source: Source, ask: Ask, screen: Screen) -> int:
    turns: list[JsonObject] = []
    has_failed = False
    while (line := screen.ask()) is not None:
        match line.strip():
            case "":
                continue
            case "/quit":
                break
            case "/new":
                turns = []
                continue
            case unknown if unknown.startswith("/") and " " not in unknown:
                screen.note(f"unknown command {unknown}: {HELP}")
                continue
        asked: list[JsonObject] = [*turns, {"role": "user", "content": line}]
        try:
            answer = screen.show(source, CHAT, ask.chat(source.model, asked, is_watched=screen.is_watching))
        except SourceError as error:
            screen.note(f"error: {error}")
            has_failed = True
            continue
        except KeyboardInterrupt:
            screen.note("stopped")
            continue
        screen.sum_up(answer)
        turns = [*asked, {"role": "assistant", "content": answer.text}]
    return 1 if has_failed else 0


def _prepare(given: argparse.Namespace) -> tuple[Source, Ask]:
    """Where to ask and what for. The model is loaded here unless a URL was given."""
    settings = resolve(server_texts(given))
    fields = request_fields(given, settings)
    if given.command == "generate":
        fields.setdefault("max_tokens", GENERATE_MAX_TOKENS)
    return _source(given, settings), Ask(fields, given.system)


def _source(given: argparse.Namespace, settings: Settings) -> Source:
    if given.url is not None:
        return RemoteModel(given.url, client_key(server_texts(given)), given.model[-1] if given.model else None)
    from server.terminal.local import LocalModel  # torch is imported only by who needs it

    return LocalModel(settings)
