"""GET /health, /ready, /version and /metrics: what probes and dashboards ask. None of them touches a worker."""

from __future__ import annotations

from typing import Any, Final

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from server.docs import error_docs
from server.metrics import CONTENT_TYPE
from server.state import state_of
from server.tuning import RETRY_AFTER_SECONDS
from server.version import VERSION

router = APIRouter(tags=["system"])

_FAILED: Final[dict[str, Any]] = {"description": "It never will serve again", "content": {"application/json": {}}}
_NOT_READY: Final[dict[str, Any]] = {
    "description": "Loading, restarting, draining or failed",
    "content": {"application/json": {}},
}
_TEXT: Final[dict[str, Any]] = {"description": "All figures", "content": {"text/plain": {"schema": {"type": "string"}}}}


@router.get("/health", summary="Is the server worth keeping?", response_model=None, responses={503: _FAILED})
async def health(request: Request) -> Response:
    """200 while it serves, loads, restarts or drains; 503 once it never will serve again."""
    state = state_of(request)
    status = state.status
    return JSONResponse(
        {
            "status": status,
            "workers": state.pool.states,
            "detail": state.failure,
        },
        status_code=503 if status == "failed" else 200,
        headers={"Cache-Control": "no-store"},
    )


@router.get("/ready", summary="Would a request be served now?", response_model=None, responses={503: _NOT_READY})
async def ready(request: Request) -> Response:
    """200 if so, else 503: loading, restarting, draining or failed."""
    status = state_of(request).status
    headers = {"Cache-Control": "no-store"}
    if status == "ok":
        return JSONResponse({"status": "ready"}, headers=headers)
    return JSONResponse({"status": status}, 503, headers | {"Retry-After": str(RETRY_AFTER_SECONDS)})


@router.get("/version", summary="Version of the server")
async def version() -> dict[str, str]:
    """The installed distribution's version."""
    return {"version": VERSION}


@router.get("/metrics", summary="Prometheus metrics", response_model=None, responses={200: _TEXT, **error_docs(401)})
async def metrics(request: Request) -> Response:
    """All figures in the text format of Prometheus."""
    state = state_of(request)
    state.metrics.counted(state.pool.states)
    return Response(state.metrics.render(), media_type=CONTENT_TYPE)
