"""A server as a source, over plain HTTP of the standard library."""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import closing
from http.client import HTTPException, HTTPResponse
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlsplit
from urllib.request import Request, urlopen

from server.body import JsonObject
from server.terminal.source import BusyError, SourceError

BUSY_STATUSES: Final = (429, 503)
SILENCE_SECONDS: Final = 600.0  # as long as OpenAI's own client waits
DONE: Final = "[DONE]"
UNREADABLE: Final = (ValueError, RecursionError, KeyError, TypeError)  # what reading a stranger's JSON may raise


class RemoteModel:
    """A model behind a URL. `model`: the name given, else the first one that the server lists."""

    def __init__(self, url: str, key: str | None, model: str | None) -> None:
        """SourceError if the URL is none, or if the server must be asked for a name and does not answer."""
        try:
            parts = urlsplit(url)
            # Asking for the port raises ValueError, too, if it is beyond the last one.
            is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
            is_address = is_address and parts.username is None
        except ValueError:
            is_address = False
        if not is_address:
            raise SourceError(f"--url must be like http://localhost:8000, got {url!r}")
        self._base = url.rstrip("/").removesuffix("/v1")
        self._key = key
        self.model = self._first_model() if model is None else model

    def stream(self, path: str, body: JsonObject) -> Generator[JsonObject, None, None]:
        """See Source."""
        with closing(self._open(path, body)) as response:
            try:
                for line in response:
                    data = line.decode("utf-8").strip().removeprefix("data:").strip()
                    if data == DONE:
                        return
                    if not data or data.startswith(":"):
                        continue
                    yield _checked(json.loads(data))
            except (OSError, HTTPException) as error:
                raise SourceError(f"the connection to {self._base} was lost: {error}") from error
            except (ValueError, RecursionError) as error:  # neither UTF-8 nor JSON, or too deep
                raise SourceError(f"{self._base} does not answer as a PSD server: {error}") from error
        raise SourceError("the stream ended before the answer was complete")

    def card(self) -> JsonObject:
        """What the server says of the model. SourceError if it does not know it."""
        with closing(self._open(f"/v1/models/{quote(self.model)}", None)) as response:
            try:
                card = json.load(response)
            except (*UNREADABLE, OSError, HTTPException) as error:
                raise SourceError(f"{self._base} describes no model as a PSD server does") from error
        return card if isinstance(card, dict) else {}

    def _first_model(self) -> str:
        with closing(self._open("/v1/models", None)) as response:
            try:
                return str(json.load(response)["data"][0]["id"])
            except (*UNREADABLE, IndexError, OSError, HTTPException) as error:
                raise SourceError(f"{self._base} lists no models as a PSD server does") from error

    def _open(self, path: str, body: JsonObject | None) -> HTTPResponse:
        headers = {"Content-Type": "application/json"}
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        data = None if body is None else json.dumps(body).encode()
        try:
            response = urlopen(Request(self._base + path, data, headers), timeout=SILENCE_SECONDS)
        except HTTPError as error:
            with error:
                kind = BusyError if error.code in BUSY_STATUSES else SourceError
                raise kind(_said(error)) from error
        except (URLError, OSError, HTTPException, ValueError) as error:  # ValueError: a host that is no name
            reason = error.reason if isinstance(error, URLError) else error
            raise SourceError(f"{self._base} cannot be reached: {reason}") from error
        assert isinstance(response, HTTPResponse)
        return response


def _checked(chunk: Any) -> JsonObject:
    """A chunk as our servers send them. SourceError for an error in the stream, and for any other shape."""
    if isinstance(chunk, dict) and "error" in chunk:
        error = chunk["error"]
        raise SourceError(str(error.get("message")) if isinstance(error, dict) else str(error))
    choices = chunk.get("choices") if isinstance(chunk, dict) else None
    is_known = isinstance(choices, list) and all(map(_is_choice, choices))
    if not isinstance(chunk, dict) or not is_known or not _is_usage(chunk.get("usage")):
        raise SourceError(f"the server sent something that is no chunk of an answer: {str(chunk)[:80]}")
    return chunk


def _is_choice(choice: object) -> bool:
    """Whether it has a text, or a delta, which may have none."""
    if not isinstance(choice, dict):
        return False
    delta = choice.get("delta")
    if isinstance(delta, dict):
        return isinstance(delta.get("content"), str | None)
    return isinstance(choice.get("text"), str)


def _is_usage(usage: object) -> bool:
    """Whether it counts tokens, or is absent."""
    return usage is None or (isinstance(usage, dict) and isinstance(usage.get("completion_tokens"), int))


def _said(error: HTTPError) -> str:
    """The message of an error's envelope, or the status if it has none."""
    try:
        return str(json.loads(error.read())["error"]["message"])
    except (*UNREADABLE, OSError, HTTPException):
        return f"the server answered {error.code} {error.reason}"
