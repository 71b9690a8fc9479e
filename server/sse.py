"""A stream of server-sent events: `data: <json>` and an empty line, LF only, ended by [DONE].

The generator behind it is closed here, whatever happens: the client leaves, the generator fails, the task is
cancelled. After the first byte an error cannot change the status any more, so it becomes an event.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from server.body import JsonObject
from server.errors import ApiError, internal

logger = logging.getLogger(__name__)

DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"


def frame(payload: object) -> bytes:
    """One event. JSON escapes line breaks, so the data is always one line."""
    return (
        b"data: " + json.dumps(payload, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode() + b"\n\n"
    )


class EventStream(Response):
    """Sends the generator's objects as events, and comments through long silences."""

    media_type = "text/event-stream"

    def __init__(
        self, objects: AsyncGenerator[JsonObject, None], ping_seconds: float, on_close: Callable[[], None]
    ) -> None:
        """ping_seconds: 0 sends no comments. on_close: called once at the end, also if nothing was ever sent."""
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._objects = objects
        self._ping_seconds = ping_seconds or None
        self._on_close = on_close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the generator ends or the client leaves, whichever comes first."""
        sending = asyncio.create_task(self._send(send))
        leaving = asyncio.create_task(_wait_for_disconnect(receive))
        try:
            await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, leaving):
                task.cancel()
            results = await asyncio.gather(sending, leaving, return_exceptions=True)
            self._on_close()
        if isinstance(results[0], Exception) and not isinstance(results[0], OSError):
            raise results[0]

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async with aclosing(self._objects), aclosing(self._frames()) as frames:
            try:
                async for chunk in frames:
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
            except ApiError as error:
                await send({"type": "http.response.body", "body": frame(error.envelope), "more_body": True})
            except Exception:
                logger.exception("a stream failed")
                await send({"type": "http.response.body", "body": frame(internal().envelope), "more_body": True})
        await send({"type": "http.response.body", "body": DONE, "more_body": False})

    async def _frames(self) -> AsyncGenerator[bytes, None]:
        """Events, with a comment for every `ping_seconds` of silence."""
        while True:
            pending = asyncio.ensure_future(anext(self._objects, None))
            try:
                while not (await asyncio.wait((pending,), timeout=self._ping_seconds))[0]:
                    yield PING
            finally:
                if not pending.done():
                    pending.cancel()
                    await asyncio.gather(pending, return_exceptions=True)
            item = pending.result()
            if item is None:
                return
            yield frame(item)


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
