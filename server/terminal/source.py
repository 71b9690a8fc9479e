"""Where answers come from: a server, or an engine in this process. Both speak in the chunks of the API's streams."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Protocol

from server.body import JsonObject

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"


class SourceError(Exception):
    """The request failed; the message is for the user."""


class BusyError(SourceError):
    """The server cannot take the request now: too much is open, or no worker is ready. Asking again may help."""


class Source(Protocol):
    """Takes one request at a time. Closing the generator cancels the request."""

    @property
    def model(self) -> str:
        """Name to put into a body."""

    def stream(self, path: str, body: JsonObject) -> Generator[JsonObject, None, None]:
        """The chunks of a stream. SourceError for whatever ends it early."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What the user wants of every answer: fields of a body beside prompt or messages."""

    fields: JsonObject
    system: str | None = None

    def completion(self, model: str, prompt: str, *, is_watched: bool) -> JsonObject:
        """Body of a completion."""
        return self._body(model, is_watched) | {"prompt": prompt}

    def chat(self, model: str, turns: list[JsonObject], *, is_watched: bool) -> JsonObject:
        """Body of a chat; `turns` are the messages after the system's."""
        head: list[JsonObject] = [] if self.system is None else [{"role": "system", "content": self.system}]
        return self._body(model, is_watched) | {"messages": [*head, *turns]}

    def _body(self, model: str, is_watched: bool) -> JsonObject:
        options = {"include_usage": True, "granularity": "frontier"}
        return {"model": model, "stream": True, "stream_options": options, "diffusing": is_watched} | self.fields
