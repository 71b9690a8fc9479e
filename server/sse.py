"""A stream of server-sent events: `data: <json>` and an empty line, LF only, ended by [DONE].

sse-starlette sends, pings and notices a client that leaves. Added here: our frames, errors after the first byte as
events, and that the generator behind the stream is closed whatever happens.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Final

from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.types import Receive, Scope, Send

from server.body import JsonObject
from server.errors import ApiError, internal

logger = logging.getLogger(__name__)

DONE: Final = b"data: [DONE]\n\n"
GRACE_SECONDS: Final = 2.5  # beyond the drain timeout, for the error that ends a stream to reach its client


def frame(payload: object) -> bytes:
    """One event. JSON escapes line breaks, so the data is always one line."""
    return (
        b"data: " + json.dumps(payload, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode() + b"\n\n"
    )


class EventStream(EventSourceResponse):
    """Sends the generator's objects as events, and comments through long silences."""

    def __init__(
        self,
        objects: AsyncGenerator[JsonObject, None],
        ping_seconds: float,
        drain_seconds: float,
        on_close: Callable[[], None],
        on_fault: Callable[[ApiError], object],
    ) -> None:
        """ping_seconds: 0 sends no comments. drain_seconds: how long the stream may go on once the server stops.

        on_close: called once at the end, also if nothing was ever sent. on_fault: called if an event cannot be made,
        which is our own fault.
        """
        self._frames = _frames(objects, on_fault)
        self._objects = objects
        self._on_close = on_close
        super().__init__(
            self._frames,
            sep="\n",
            ping=ping_seconds,
            ping_message_factory=_ping,
            headers={"Cache-Control": "no-cache"},
            # By default a stopping server cuts its streams at once; ours are drained.
            shutdown_grace_period=drain_seconds + GRACE_SECONDS,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the generator ends or the client leaves, whichever comes first."""
        try:
            async with aclosing(self._objects), aclosing(self._frames):
                await super().__call__(scope, receive, send)
        except OSError:
            logger.debug("a client left while being sent to")
        finally:
            self._on_close()


async def _frames(
    objects: AsyncGenerator[JsonObject, None], on_fault: Callable[[ApiError], object]
) -> AsyncGenerator[bytes, None]:
    """Encoded events. After the first byte an error cannot change the status any more, so it becomes an event."""
    try:
        async for item in objects:
            yield frame(item)
    except ApiError as error:
        yield frame(error.envelope)
    except Exception:  # the status is sent already: the client is told inside the stream
        logger.exception("a stream failed")
        fault = internal()
        on_fault(fault)
        yield frame(fault.envelope)
    yield DONE


def _ping() -> ServerSentEvent:
    return ServerSentEvent(comment="ping", sep="\n")
