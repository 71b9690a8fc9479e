"""Streams through a Ray cluster, as their clients see them."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Event

import httpx

from tests.server.process import SLOW


@dataclass(slots=True)
class Stream:
    """What a client saw of one stream. It leaves with the next chunk once `is_wanted` is false."""

    has_begun: Event = field(default_factory=Event)
    is_wanted: bool = True
    is_complete: bool = False
    num_chunks: int = 0


def start(
    executor: ThreadPoolExecutor, client: httpx.Client, count: int, max_tokens: int
) -> tuple[list[Stream], list[Future[None]]]:
    """So many streams of so many tokens; each future ends with its stream."""
    streams = [Stream() for _ in range(count)]
    return streams, [executor.submit(follow, client, stream, max_tokens) for stream in streams]


def follow(client: httpx.Client, stream: Stream, max_tokens: int) -> None:
    """Read a stream to its end, whatever end that is."""
    body = {"model": "tiny", "prompt": "a", "max_tokens": max_tokens, "ignore_eos": True, "stream": True, "psd": SLOW}
    body["skip_special_tokens"] = False  # else what follows the end of the text would be empty, and no chunk
    try:
        with client.stream("POST", "/v1/completions", json=body) as response:
            assert response.status_code == 200, response.read()
            for line in response.iter_lines():
                stream.is_complete |= line == "data: [DONE]"
                stream.num_chunks += line.startswith("data: ")
                stream.has_begun.set()
                if not stream.is_wanted:
                    return
    except httpx.TransportError:
        pass  # the replica died: the stream ends without [DONE]
    finally:
        stream.has_begun.set()
