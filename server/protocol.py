"""One HTTP connection: uvicorn's own, with deadlines for clients that send or read too slowly.

Three things may keep a connection waiting on its client, and each has an end here: a header that does not arrive, a
body that goes on after its answer, and an answer that nobody reads. A body that is waited for has its deadline in
`server.body`; how many connections there may be is for `server.connections` to say. What is not HTTP is answered in our
envelope.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import sys
from collections.abc import Callable
from typing import Any, Final

import h11
from uvicorn import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from server.connections import ConnectionLimit
from server.errors import ApiError, invalid, too_slow, unavailable
from server.settings import HttpSettings

logger = logging.getLogger(__name__)

MAX_HEADER_BYTES: Final = 32 * 1024  # of all headers of a request together
HEADER_TOO_LARGE: Final = 431
GRACE_SECONDS: Final = 0.1


class _Timer:
    """Calls something once, later, unless it is cancelled or set anew."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._handle: asyncio.TimerHandle | None = None

    @property
    def is_set(self) -> bool:
        return self._handle is not None

    def set(self, seconds: float, callback: Callable[[], None]) -> None:
        def fire() -> None:
            self._handle = None
            callback()

        self.cancel()
        self._handle = self._loop.call_later(seconds, fire)

    def cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None


class GuardedProtocol(H11Protocol):
    """Closes a connection whose client keeps it waiting. Owner of the connection's timers."""

    def __init__(
        self,
        read_seconds: float,
        stall_seconds: float,
        limit: ConnectionLimit,
        on_error: Callable[[str], None],
        **given: Any,
    ) -> None:
        """read_seconds: for a header to arrive. stall_seconds: for a client to read something of what was sent.

        limit: shared by all connections of the server.
        on_error: told the code of every error answered here. given: uvicorn's own arguments.
        """
        super().__init__(**given)
        self._read_seconds = read_seconds
        self._stall_seconds = stall_seconds
        self._limit = limit
        self._on_error = on_error
        self._read_timer = _Timer(self.loop)
        self._stall_timer = _Timer(self.loop)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn narrows it
        """Nothing is buffered beyond what the kernel takes: a client that stops reading is noticed at once."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=1, low=0)  # asyncio's TLS transport always pauses with high=0
        if self._limit.enter(self):
            self._expect_more()
        else:
            self._refuse(_too_many())

    def data_received(self, data: bytes) -> None:
        """A deadline starts with the first byte that is waited for, and further bytes do not move it."""
        super().data_received(data)
        is_answered = self.cycle is None or self.cycle.response_complete
        if self.conn.their_state is h11.IDLE or (self.conn.their_state is h11.SEND_BODY and is_answered):
            self._expect_more()
        else:
            self._read_timer.cancel()
        self._tell_limit()

    def on_response_complete(self) -> None:
        """The connection waits for its client's next request."""
        super().on_response_complete()
        self._tell_limit()

    def give_way(self) -> None:
        """End for the sake of a newcomer; whoever has not had an answer here is told why."""
        if self.conn.our_state is h11.IDLE and self.cycle is None:
            self._refuse(_too_many())
        self.transport.abort()  # closing would wait for the client

    def pause_writing(self) -> None:
        """Something was sent that the kernel did not take."""
        super().pause_writing()
        self._expect_reader()

    def resume_writing(self) -> None:
        """All of it is gone."""
        super().resume_writing()
        self._stall_timer.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        """No timer outlives the connection."""
        self._read_timer.cancel()
        self._limit.leave(self)
        super().connection_lost(exc)
        self._stall_timer.cancel()

    def send_400_response(self, msg: str) -> None:
        """What came is not HTTP, or its header is too large."""
        error = sys.exception()
        if isinstance(error, h11.RemoteProtocolError) and error.error_status_hint == HEADER_TOO_LARGE:
            message = f"the headers are larger than {MAX_HEADER_BYTES} bytes"
            self._refuse(ApiError(HEADER_TOO_LARGE, "header_too_large", message))
        else:
            self._refuse(invalid(None, "the request is not valid HTTP", "invalid_request"))

    def _tell_limit(self) -> None:
        """The server waits for the client until a request is here as a whole."""
        self._limit.set_waiting(self, is_waiting=self.conn.their_state in (h11.IDLE, h11.SEND_BODY))

    def _expect_more(self) -> None:
        if not self._read_timer.is_set and not self.transport.is_closing():
            self._read_timer.set(self._read_seconds, self._give_up_reading_soon)

    def _give_up_reading_soon(self) -> None:
        """What came while this process itself was held up is looked at first."""
        self._read_timer.set(GRACE_SECONDS, self._give_up_reading)

    def _give_up_reading(self) -> None:
        if self.conn.our_state is h11.IDLE:
            self._refuse(too_slow(f"the request's header did not arrive within {self._read_seconds:g} s"))
        elif not self.transport.is_closing():
            self.transport.close()

    def _expect_reader(self) -> None:
        unread = self.transport.get_write_buffer_size()
        self._stall_timer.set(self._stall_seconds, lambda: self._give_up_writing(unread))

    def _give_up_writing(self, unread: int) -> None:
        """Unless the client read some of it meanwhile, cut the connection: closing would wait for it for ever."""
        if self.transport.get_write_buffer_size() < unread:
            self._expect_reader()
        else:
            logger.info("a client read nothing for %g s: its connection is cut", self._stall_seconds)
            self.transport.abort()

    def _refuse(self, error: ApiError) -> None:
        """Answer and close. If an answer is under way already, only close."""
        if self.transport.is_closing():
            return
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._on_error(error.code)
            body = json.dumps(error.envelope).encode()
            headers = [
                (b"content-type", b"application/json"),
                (b"content-length", str(len(body)).encode()),
                (b"x-request-id", f"req-{secrets.token_hex(12)}".encode()),
                (b"connection", b"close"),
            ]
            headers += [
                (name.lower().encode(), value.encode()) for name, value in error.headers.items() if name != "Connection"
            ]
            for event in (h11.Response(status_code=error.status, headers=headers), h11.Data(body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


def _too_many() -> ApiError:
    return unavailable("too_many_connections", "the server has too many connections; try again soon")


def guarded_protocol(
    http: HttpSettings, limit: ConnectionLimit, on_error: Callable[[str], None]
) -> Callable[..., GuardedProtocol]:
    """What uvicorn calls for every connection."""

    def make(
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> GuardedProtocol:
        return GuardedProtocol(
            *(http.read_seconds, http.stall_seconds, limit, on_error),
            config=config,
            server_state=server_state,
            app_state=app_state,
            _loop=_loop,
        )

    return make
