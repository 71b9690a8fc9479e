"""The server that is measured: its address, what it can, and one request to it, timed."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import httpx

from psd_core.errors import ConfigError
from server.bench.prompts import Prompt
from server.bench.reading import EventLines, ProtocolError, Reading, code_of

Endpoint = Literal["completions", "chat"]

PATHS: Final[Mapping[Endpoint, str]] = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
# From what tells most to what every server takes: tokens so far in every chunk, tokens at the end, no counts.
USAGE_OPTIONS: Final[tuple[dict[str, bool] | None, ...]] = (
    {"include_usage": True, "continuous_usage_stats": True},
    {"include_usage": True},
    None,
)
PROBE_TOKENS: Final = 2


class UnreachableError(Exception):
    """The server cannot be measured; the message says why."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What one request came to. Times in seconds, from when it was due; None where the server told nothing."""

    due: float  # since the level began
    total: float
    error: str | None = None  # its kind; the times below are then not used
    first_text: float | None = None
    gaps: tuple[float, ...] = ()
    gap_tokens: tuple[int, ...] | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    forwards: int | None = None


@dataclass(frozen=True, slots=True)
class Ask:
    """Everything that the requests of a run have in common."""

    model: str
    endpoint: Endpoint
    max_tokens: int
    extra: Mapping[str, object]
    timeout: float  # seconds for one answer in all


class Target:
    """A server behind a URL. Owns no connection: `client` does, and bounds their number."""

    def __init__(self, client: httpx.AsyncClient, ask: Ask) -> None:
        self._client = client
        self._ask = ask
        self._usage: dict[str, bool] | None = None

    @property
    def usage_options(self) -> Mapping[str, bool]:
        """The stream options that the server was found to take."""
        return self._usage or {}

    async def probe(self, prompt: Prompt) -> None:
        """Find out which usage options the server takes. UnreachableError if it answers with none of them."""
        said = ""
        for self._usage in USAGE_OPTIONS:
            body = self._body(Prompt(prompt.text, prompt.messages, PROBE_TOKENS))
            try:
                async with asyncio.timeout(self._ask.timeout):
                    response = await self._client.post(PATHS[self._ask.endpoint], content=body)
            except TimeoutError:
                limit = f"{self._ask.timeout:g} s (--timeout)"
                raise UnreachableError(
                    f"{self._client.base_url} did not answer a first request within {limit}"
                ) from None
            except httpx.HTTPError as error:
                raise UnreachableError(f"{self._client.base_url} cannot be reached: {_named(error)}") from None
            if response.status_code == 200:
                return
            said = f"{response.status_code} {_message(response)}"
            if response.status_code not in (400, 422):
                break
        raise UnreachableError(f"{self._client.base_url} refuses the requests: {said}")

    async def ask(self, prompt: Prompt, due: float, origin: float) -> Sample:
        """Send one request and read its answer to the end. due, origin: by perf_counter; the level began at origin."""
        body = self._body(prompt)
        reading, error = Reading(), None
        try:
            async with asyncio.timeout(self._ask.timeout):
                error = await self._read(body, reading)
        except TimeoutError:
            error = f"no end within {self._ask.timeout:g} s"
        except ProtocolError as fault:
            error = str(fault)
        except httpx.ConnectError as fault:
            error = f"no connection: {_named(fault)[:80]}"
        except httpx.HTTPError as fault:
            error = f"connection lost: {type(fault).__name__}"
        now = time.perf_counter()
        if error is None and reading.end is None:
            error = "a stream without an end"
        if error is not None:
            return Sample(due - origin, now - due, error)
        assert reading.end is not None
        first = reading.first_text
        return Sample(
            due=due - origin,
            total=reading.end - due,
            first_text=None if first is None else first - due,
            gaps=tuple(reading.gaps or ()),
            gap_tokens=None if reading.gap_tokens is None else tuple(reading.gap_tokens),
            prompt_tokens=reading.prompt_tokens,
            output_tokens=reading.output_tokens,
            forwards=reading.forwards,
        )

    async def _read(self, body: bytes, reading: Reading) -> str | None:
        """The kind of an answer that is none, else None once the stream has ended."""
        async with self._client.stream("POST", PATHS[self._ask.endpoint], content=body) as response:
            if response.status_code != 200:
                await response.aread()
                return f"{response.status_code} {code_of(_json(response))}"
            lines = EventLines()
            async for piece in response.aiter_bytes():
                now = time.perf_counter()
                for event in lines.push(piece):
                    reading.take(event, now)
        return None

    def _body(self, prompt: Prompt) -> bytes:
        ask = self._ask
        fields: dict[str, object] = {
            "model": ask.model,
            "max_tokens": prompt.max_tokens or ask.max_tokens,
            "stream": True,
        }
        if self._usage is not None:
            fields["stream_options"] = self._usage
        if ask.endpoint == "chat":
            fields["messages"] = list(prompt.messages) or [{"role": "user", "content": prompt.text}]
        else:
            fields["prompt"] = prompt.text
        return json.dumps(fields | dict(ask.extra)).encode()


def make_client(url: str, key: str | None, max_connections: int) -> httpx.AsyncClient:
    """A client for `url`, with or without /v1 at its end. ConfigError if it is none.

    A request that finds no free connection waits for one, and its waiting is measured. No other timeouts than that of
    the whole answer.
    """
    try:
        parts = httpx.URL(url)
    except httpx.InvalidURL:
        parts = httpx.URL()
    has_port = parts.port is None or 0 < parts.port < 2**16
    if parts.scheme not in ("http", "https") or not parts.host or not has_port:
        raise ConfigError("url", f"--url must be like http://localhost:8000, got {url!r}")
    headers = {"content-type": "application/json", "accept-encoding": "identity"}
    headers |= {} if key is None else {"authorization": f"Bearer {key}"}
    limits = httpx.Limits(max_connections=max_connections, max_keepalive_connections=max_connections)
    base_url = url.rstrip("/").removesuffix("/v1")
    return httpx.AsyncClient(base_url=base_url, headers=headers, limits=limits, timeout=None)


async def first_model(client: httpx.AsyncClient) -> str:
    """The first model that the server lists. UnreachableError if it lists none."""
    try:
        response = await client.get("/v1/models", timeout=30)
    except httpx.HTTPError as error:
        raise UnreachableError(f"{client.base_url} cannot be reached: {_named(error)}") from None
    if response.status_code != 200:
        raise UnreachableError(f"{client.base_url}/v1/models answers {response.status_code} {_message(response)}")
    listed = _json(response)
    try:
        return str(listed["data"][0]["id"])
    except (KeyError, IndexError, TypeError):
        raise UnreachableError(f"{client.base_url} lists no models; name one with --model") from None


def _json(response: httpx.Response) -> Any:
    try:
        return response.json()
    except (ValueError, RecursionError):
        return None


def _message(response: httpx.Response) -> str:
    """What an error's envelope says, else the beginning of the body."""
    envelope = _json(response)
    error = envelope.get("error") if isinstance(envelope, dict) else None
    if isinstance(error, dict) and error.get("message"):
        return str(error["message"])[:300]
    return response.text[:300]


def _named(error: httpx.HTTPError) -> str:
    return str(error) or type(error).__name__
