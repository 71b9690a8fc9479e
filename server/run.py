"""Run an application under uvicorn: bind first, print the banner when ready, drain on SIGTERM, exit with a truth.

Signals: from the first SIGTERM or SIGINT on, new requests are answered 503 while open ones finish within the drain
timeout; those that are left then end with an error. A second signal exits at once.
"""

from __future__ import annotations

import asyncio
import logging
import math
import socket
import sys
from types import FrameType
from typing import Final

import uvicorn
from fastapi import FastAPI

from psd_core.errors import ConfigError
from server.admission import Admission
from server.app import create_app
from server.banner import banner, print_banner
from server.boot import Hooks
from server.connections import ConnectionLimit, allow_open_files
from server.errors import unavailable
from server.protocol import MAX_HEADER_BYTES, guarded_protocol
from server.settings import HttpSettings, Settings
from server.state import AppState
from server.tracing import make_traces

logger = logging.getLogger(__name__)

LAST_FRAMES_SECONDS: Final = 5.0  # for the errors that end open requests to reach their clients
DRAIN_POLL_SECONDS: Final = 0.05
KEEP_ALIVE_SECONDS: Final = 15
BACKLOG: Final = 2048


class DrainingServer(uvicorn.Server):
    """uvicorn, but the end of draining is an error frame and not a cut connection, and the exit status is ours."""

    def __init__(self, config: uvicorn.Config, state: AppState) -> None:
        super().__init__(config)
        self._state = state

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """First signal: drain. Second: exit at once."""
        if self.should_exit:
            self.force_exit = True
        self.should_exit = True
        self._state.is_draining = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Wait for open requests, end the rest, close the connections, stop the workers."""
        self._state.is_draining = True
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._state.settings.http.drain_seconds
        while self._state.pool.num_open and loop.time() < deadline and not self.force_exit:
            await asyncio.sleep(DRAIN_POLL_SECONDS)
        self._end_rest()
        remaining = max(0.0, deadline - loop.time()) + LAST_FRAMES_SECONDS  # for answers that are still being read
        self.config.timeout_graceful_shutdown = math.ceil(remaining)
        await super().shutdown(sockets)

    def _end_rest(self) -> None:
        num_open = self._state.pool.num_open
        if num_open:
            logger.warning("drain timeout: ending %d open sequences", num_open)
        self._state.pool.fail_all(unavailable("shutting_down", "the server is shutting down"))


def run(settings: Settings) -> int:
    """Serve until a signal. Exit status: 0 after a signal, 1 if the port or the model cannot be had."""
    http = settings.http
    try:
        traces = make_traces(settings.otlp_endpoint)
    except ConfigError as error:
        print(f"psd serve: error: {error}", file=sys.stderr)
        return 1
    try:
        listener = _bind(http)
    except OSError as error:
        print(f"psd serve: error: cannot listen on {http.host} port {http.port}: {error.strerror}", file=sys.stderr)
        return 1
    url = _url(http, listener)
    failures: list[str] = []

    def on_ready(admission: Admission) -> None:
        print_banner(banner(settings, admission, url), sys.stdout)

    def on_failed(reason: str) -> None:
        if not app_state(app).is_draining:
            failures.append(reason)
            server.should_exit = True

    app = create_app(settings, Hooks(on_ready, on_failed), traces)
    server = DrainingServer(_uvicorn_config(app, settings), app_state(app))
    logger.info("listening on %s, loading %s", url, settings.model.source)
    asyncio.run(server.serve(sockets=[listener]))
    if failures:
        print(f"psd serve: error: {failures[0]}", file=sys.stderr)
        return 1
    return 0


def app_state(app: FastAPI) -> AppState:
    """The state of an application that this process made."""
    state = app.state.psd
    assert isinstance(state, AppState)
    return state


def _bind(http: HttpSettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in http.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((http.host, http.port))
        listener.listen(BACKLOG)  # a client that comes before the application is up waits instead of being refused
        listener.set_inheritable(False)
    except OSError:
        listener.close()
        raise
    return listener


def _url(http: HttpSettings, listener: socket.socket) -> str:
    scheme = "https" if http.ssl_certfile else "http"
    host = "localhost" if http.host in ("0.0.0.0", "::") else http.host
    shown = f"[{host}]" if ":" in host else host
    return f"{scheme}://{shown}:{listener.getsockname()[1]}{http.root_path}"


def _uvicorn_config(app: FastAPI, settings: Settings) -> uvicorn.Config:
    http = settings.http
    limit = ConnectionLimit(allow_open_files(http.max_connections))
    return uvicorn.Config(
        app,
        http=guarded_protocol(http, limit, app_state(app).metrics.failed),  # type: ignore[arg-type]  # called like a class
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        ws="none",
        log_config=None,
        access_log=False,
        lifespan="on",
        server_header=False,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        ssl_keyfile=http.ssl_keyfile,
        ssl_certfile=http.ssl_certfile,
    )
