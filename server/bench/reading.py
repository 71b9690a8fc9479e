"""A streamed answer as it comes in: bytes to events, events to what is measured. No sockets and no clock here."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

DONE: Final = "[DONE]"
MAX_EVENT_BYTES: Final = 1 << 24  # beyond it a server sends something else than an answer


class ProtocolError(Exception):
    """The server sent something that is no stream of OpenAI's, or an error inside of one. The message is its kind."""


class EventLines:
    """Splits bytes into the data of server-sent events; comments and other fields are dropped.

    Only LF and CRLF end a line: JSON may hold every other character that Unicode calls a line break.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[str] = []

    def push(self, data: bytes) -> Iterator[str]:
        """The events that are complete now. ProtocolError if a line is not UTF-8, or an event has no end."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for raw in lines:
            try:
                line = raw.removesuffix(b"\r").decode("utf-8")
            except UnicodeDecodeError:
                raise ProtocolError("a stream that is not UTF-8") from None
            if line.startswith("data:"):
                self._data.append(line.removeprefix("data:").removeprefix(" "))
            elif not line and self._data:
                event, self._data = "\n".join(self._data), []
                yield event
        if len(self._rest) + sum(map(len, self._data)) > MAX_EVENT_BYTES:
            raise ProtocolError(f"an event of more than {MAX_EVENT_BYTES >> 20} MiB")


@dataclass(slots=True)
class Reading:
    """What one answer has brought so far. Moments are in seconds by whatever clock the caller reads."""

    first_text: float | None = None  # moment of the first chunk with text
    last_text: float | None = None
    end: float | None = None  # moment of [DONE], or of the last finish_reason where none is sent
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    forwards: int | None = None
    is_finished: bool = False  # a finish_reason came
    gaps: list[float] | None = None  # between successive chunks with text
    gap_tokens: list[int] | None = None  # tokens of the chunk behind each gap; None: the server does not count them
    _counted: int | None = None  # tokens up to the last chunk with text

    def take(self, event: str, now: float) -> None:
        """One event. ProtocolError if it is an error or no chunk."""
        if event == DONE:
            self.end = now
            return
        chunk = _chunk(event)
        usage = chunk.get("usage")
        self._count(usage if isinstance(usage, dict) else {}, chunk)
        has_text = False
        for choice in chunk["choices"]:
            if not isinstance(choice, dict):
                raise ProtocolError("something that is no chunk of an answer")
            has_text = has_text or _has_text(choice)
            if choice.get("finish_reason") is not None:
                self.is_finished = True
                self.end = now
        if has_text:
            self._note_text(now, usage)

    def _count(self, usage: dict[str, Any], chunk: dict[str, Any]) -> None:
        self.prompt_tokens = _whole(usage.get("prompt_tokens"), self.prompt_tokens)
        self.output_tokens = _whole(usage.get("completion_tokens"), self.output_tokens)
        for figures in (usage.get("psd"), chunk.get("psd")):
            if isinstance(figures, dict):
                self.forwards = _whole(figures.get("forwards"), self.forwards)

    def _note_text(self, now: float, usage: object) -> None:
        counted = _whole(usage.get("completion_tokens"), None) if isinstance(usage, dict) else None
        if self.last_text is None:
            self.first_text, self.gaps, self.gap_tokens = now, [], []
        else:
            assert self.gaps is not None
            self.gaps.append(now - self.last_text)
            if counted is None or self._counted is None:
                self.gap_tokens = None
            elif self.gap_tokens is not None:
                self.gap_tokens.append(counted - self._counted)
        self.last_text, self._counted = now, counted


def _chunk(event: str) -> dict[str, Any]:
    try:
        chunk = json.loads(event)
    except (ValueError, RecursionError):
        raise ProtocolError("an event that is not JSON") from None
    if isinstance(chunk, dict) and chunk.get("error"):
        raise ProtocolError(f"error in the stream: {code_of(chunk)}")
    if not isinstance(chunk, dict) or not isinstance(chunk.get("choices"), list):
        raise ProtocolError("something that is no chunk of an answer")
    return chunk


def code_of(envelope: object) -> str:
    """The code of an error's envelope, or whatever names it best."""
    error = envelope.get("error") if isinstance(envelope, dict) else None
    if isinstance(error, dict):
        return str(error.get("code") or error.get("type") or error.get("message") or "no code")[:80]
    return str(error)[:80] if error else "no code"


def _has_text(choice: dict[str, Any]) -> bool:
    """Whether the chunk shows a reader something: text, reasoning or a tool call."""
    delta = choice.get("delta")
    if isinstance(delta, dict):
        return any(delta.get(name) for name in ("content", "reasoning_content", "reasoning", "tool_calls"))
    return bool(choice.get("text"))


def _whole(value: object, otherwise: int | None) -> int | None:
    return value if type(value) is int else otherwise
