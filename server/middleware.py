"""What happens to every request before and after its route: request id, path, HEAD, key, and no exception gets out.

Pure ASGI, so that disconnects and streams pass through untouched.
"""

from __future__ import annotations

import logging
import re
import secrets
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.errors import ApiError, internal
from server.keys import ApiKey, find_key
from server.logs import request_id as request_id_of_logs
from server.metrics import Metrics

logger = logging.getLogger(__name__)

_SAFE_ID: Final = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")
OPEN_PATHS: Final = frozenset({"/health", "/ready"})
ANONYMOUS: Final = "-"  # name of the caller where no key is asked


class RequestContext:
    """Outermost: names the request, drops a trailing slash, and turns whatever is raised into an answer.

    Routes never see HEAD: it is answered like the GET, and uvicorn, which still knows the method, sends no body.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Adds x-request-id to every answer: the client's if it is short and harmless, else one of ours."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if _SAFE_ID.fullmatch(given) else f"req-{secrets.token_hex(12)}"
        path: str = scope["path"]
        trimmed = path.rstrip("/") or "/"
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        scope = {**scope, "psd.request_id": request_id, "path": trimmed, "method": method}
        has_started = False
        request_id_of_logs.set(request_id)  # of this task and those it starts

        async def send_with_id(message: Message) -> None:
            nonlocal has_started
            if message["type"] == "http.response.start":
                has_started = True
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except ClientDisconnect:
            return
        except Exception:  # the outermost place: our fault becomes a 500 with the envelope, and the server goes on
            logger.exception("the request failed")
            if has_started:
                raise
            await answer(internal(), self._metrics)(scope, receive, send_with_id)


class KeyCheck:
    """Refuses every request without a valid key, but for the paths that probes use. Default is deny."""

    def __init__(self, app: ASGIApp, keys: tuple[ApiKey, ...], open_paths: frozenset[str], metrics: Metrics) -> None:
        self._app = app
        self._keys = keys
        self._open_paths = open_paths
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """401 unless the key is right, the path is open, or no key is configured. Later stages find the key's name."""
        if scope["type"] == "lifespan" or not self._keys or _route_path(scope) in self._open_paths:
            await self._app({**scope, "psd.key_name": ANONYMOUS}, receive, send)
            return
        key = find_key(self._keys, Headers(scope=scope).get("authorization", ""))
        if key is None:
            await answer(_unauthorized(), self._metrics)(scope, receive, send)
        else:
            await self._app({**scope, "psd.key_name": key.name}, receive, send)


def answer(error: ApiError, metrics: Metrics) -> JSONResponse:
    """The error as a response; counts it."""
    metrics.failed(error.code)
    return JSONResponse(error.envelope, status_code=error.status, headers=dict(error.headers))


def _unauthorized() -> ApiError:
    message = "a valid key is required: Authorization: Bearer KEY"
    return ApiError(401, "invalid_api_key", message, headers={"WWW-Authenticate": "Bearer"})


def _route_path(scope: Scope) -> str:
    """The path without the prefix that a proxy in front strips and uvicorn puts back."""
    path: str = scope["path"]
    root_path: str = scope.get("root_path", "")
    return path.removeprefix(root_path) if path.startswith(f"{root_path}/") else path
