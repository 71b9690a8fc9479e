"""The application: routes, middleware and the lifespan that owns the workers. Never imports torch."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.middleware.cors import CORSMiddleware
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from server.boot import Hooks, boot
from server.errors import ApiError
from server.metrics import Metrics
from server.middleware import OPEN_PATHS, KeyCheck, RequestContext, answer
from server.playground import read_assets
from server.pool import WorkerPool
from server.quota import Quotas
from server.routes import chat, completions, models, playground, reference, system, tokenize
from server.settings import Settings
from server.state import AppState, state_of
from server.tracing import NoTraces, Traces
from server.version import VERSION


def create_app(settings: Settings, hooks: Hooks | None = None, traces: Traces | None = None) -> FastAPI:
    """A complete application. Its workers start with its lifespan, and end with it; so do `traces`, if given."""
    metrics = Metrics()
    quotas = Quotas(settings.http.max_key_seqs, settings.http.max_key_requests)
    state = AppState(settings, metrics, WorkerPool(metrics), quotas, traces or NoTraces(), int(time.time()))

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        booting = asyncio.create_task(boot(state, hooks or Hooks()), name="boot")
        try:
            yield
        finally:
            booting.cancel()
            await asyncio.gather(booting, return_exceptions=True)
            await state.pool.close()
            await asyncio.to_thread(state.traces.close)

    app = FastAPI(
        title="PSD server",
        description="OpenAI-compatible inference for diffusion language models",
        version=VERSION,
        lifespan=lifespan,
        root_path=settings.http.root_path,
        redirect_slashes=False,
        docs_url=None,  # FastAPI's own pages load scripts from other hosts: see routes.reference
        redoc_url=None,
    )
    app.state.psd = state
    for module in (completions, chat, models, tokenize, system, reference):
        app.include_router(module.router)
    assets = read_assets() if settings.http.has_playground else ()
    app.include_router(playground.make_router(assets))
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(ApiError, _on_api_error)
    _add_middleware(app, settings, metrics, OPEN_PATHS.union(asset.path for asset in assets))
    return app


def _add_middleware(app: FastAPI, settings: Settings, metrics: Metrics, open_paths: frozenset[str]) -> None:
    """The last one added is the outermost. CORS stands before the key: a preflight carries none."""
    http = settings.http
    open_paths = open_paths | {"/metrics"} if http.is_metrics_open else open_paths
    app.add_middleware(KeyCheck, keys=http.api_keys, open_paths=open_paths, metrics=metrics)
    if http.allowed_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(http.allowed_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=["x-request-id", "retry-after"],
        )
    app.add_middleware(RequestContext, metrics=metrics)


async def _on_http_exception(request: Request, error: Exception) -> JSONResponse:
    """Unknown path, wrong method: the same envelope as every other error."""
    assert isinstance(error, HTTPException)
    where = f"{request.method} {request.url.path}"[:200]
    messages = {404: f"unknown path: {where}", 405: f"method not allowed: {where}"}
    codes = {404: "unknown_path", 405: "method_not_allowed"}
    message = messages.get(error.status_code, str(error.detail))
    code = codes.get(error.status_code, "invalid_request")
    headers = dict(error.headers or {})
    if headers.get("Allow") == "GET":
        headers["Allow"] = "GET, HEAD"  # see RequestContext
    return answer(ApiError(error.status_code, code, message, headers=headers), state_of(request).metrics)


async def _on_api_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ApiError)
    return answer(error, state_of(request).metrics)
