"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

from fastapi import APIRouter, Request

from server.body import JsonObject
from server.docs import error_docs
from server.state import AppState, state_of

router = APIRouter(tags=["models"])


@router.get("/v1/models", summary="Models that are served", responses=error_docs(401, 503))
async def list_models(request: Request) -> JsonObject:
    """All names of the one model that this server has."""
    state = state_of(request)
    return {"object": "list", "data": [_card(state, name) for name in state.settings.model.served_names]}


@router.get("/v1/models/{name:path}", summary="One model", responses=error_docs(401, 404, 503))
async def get_model(request: Request, name: str) -> JsonObject:
    """404 with the served names unless it is one of them."""
    state = state_of(request)
    state.require_model(name)
    return _card(state, name)


def _card(state: AppState, name: str) -> JsonObject:
    facts = state.require_ready().facts
    return {
        "id": name,
        "object": "model",
        "created": state.started_at,
        "owned_by": "psd-server",
        "root": state.settings.model.served_names[0],
        "parent": None,
        "max_model_len": facts.limits.max_model_len,
    }
