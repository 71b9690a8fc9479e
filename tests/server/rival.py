"""A server of somebody else's: speaks OpenAI's streams and nothing of ours, at a pace and with faults as asked."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.server.process import wait_until


@dataclass
class Rival:
    """How it behaves, and what it was asked. Answers are "word word …", one token and one chunk per word.

    faults   by the number of the request, counted from 0: a status, or "error", "lost", "garbage" or "endless" in
             its stream
    """

    serial_seconds: float = 0.0  # an answer takes so long, and there is only one at a time
    counts_chunks: bool = False  # takes the option continuous_usage_stats
    counts_tokens: bool = True  # takes the option include_usage
    faults: dict[int, int | str] = field(default_factory=dict)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    url: str = ""

    def app(self) -> Starlette:
        """The routes, for one event loop."""
        turn = asyncio.Lock()

        async def models(request: Request) -> Response:
            return JSONResponse({"object": "list", "data": [{"id": "rival-1"}]})

        async def generate(request: Request) -> Response:
            body = await request.json()
            options = body.get("stream_options") or {}
            known = {"include_usage"} if self.counts_tokens else set()
            known |= {"continuous_usage_stats"} if self.counts_chunks else set()
            for name in options:
                if name not in known:
                    message = f"Unknown parameter: stream_options.{name}"
                    return JSONResponse({"error": {"message": message, "code": "unknown_parameter"}}, 400)
            fault = self.faults.get(len(self.bodies))
            self.bodies.append(body)
            if isinstance(fault, int):
                return JSONResponse({"error": {"message": "not now", "code": "too_busy"}}, fault)
            async with turn:
                await asyncio.sleep(self.serial_seconds)
            return StreamingResponse(self._chunks(body, fault), media_type="text/event-stream")

        routes = [Route("/v1/models", models)]
        routes += [Route(path, generate, methods=["POST"]) for path in ("/v1/completions", "/v1/chat/completions")]
        return Starlette(routes=routes)

    async def _chunks(self, body: dict[str, Any], fault: str | None) -> AsyncIterator[bytes]:
        def event(choices: list[dict[str, Any]], num_tokens: int | None) -> bytes:
            chunk: dict[str, Any] = {"object": "chunk", "choices": choices}
            if num_tokens is not None:
                chunk["usage"] = {"prompt_tokens": 7, "completion_tokens": num_tokens}
            return f"data: {json.dumps(chunk)}\r\n\r\n".encode()

        is_chat = "messages" in body
        options = body.get("stream_options") or {}
        for index in range(body["max_tokens"]):
            word = "word\u2028"
            said = {"delta": {"content": word}} if is_chat else {"text": word}
            is_counted = "continuous_usage_stats" in options
            yield event([{"index": 0, "finish_reason": None} | said], index + 1 if is_counted else None)
            await asyncio.sleep(0.001)
            if index == 1 and fault == "error":
                yield b'data: {"error": {"message": "out of luck", "code": "luckless"}}\n\ndata: [DONE]\n\n'
                return
            if index == 1 and fault == "lost":
                raise ConnectionAbortedError
            if index == 1 and fault == "garbage":
                yield b"data: <html>\n\n"
                return
            if index == 1 and fault == "endless":
                return
        end: dict[str, object] = {"delta": {}} if is_chat else {"text": ""}
        yield event([{"index": 0, "finish_reason": "length"} | end], None)
        if "include_usage" in options:
            yield event([], body["max_tokens"])
        yield b"data: [DONE]\n\n"


@contextmanager
def running(rival: Rival) -> Iterator[Rival]:
    """Serve it on a free port, in a thread."""
    config = uvicorn.Config(rival.app(), port=0, log_level="critical", ws="none", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_until(lambda: server.started)
        port = server.servers[0].sockets[0].getsockname()[1]
        rival.url = f"http://127.0.0.1:{port}"
        yield rival
    finally:
        server.should_exit = True
        thread.join(20)
