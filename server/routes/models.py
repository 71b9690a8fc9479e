"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

from dataclasses import asdict

from fastapi import APIRouter, Request

from psd_core.assets import demo_path
from server.admission import Admission
from server.body import JsonObject
from server.docs import error_docs
from server.state import AppState, state_of
from server.tuning import COMPLETION_MAX_TOKENS

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
    admission = state.require_ready()
    return {
        "id": name,
        "object": "model",
        "created": state.started_at,
        "owned_by": "psd-server",
        "root": state.settings.model.served_names[0],
        "parent": None,
        "max_model_len": admission.facts.limits.max_model_len,
        "psd": _own(admission) | {"is_built_in": state.settings.model.source == str(demo_path())},
    }


def _own(admission: Admission) -> JsonObject:
    """What a request gets that does not say otherwise, and what the model's attention allows."""
    limits, settings = admission.facts.limits, admission.settings
    return {
        "decoder": asdict(settings.decoder),
        "max_tokens": {"completions": COMPLETION_MAX_TOKENS, "chat": settings.default_max_tokens},
        "seed": settings.seed,
        "caches": list(limits.caches),
        "block_length": limits.block_length,
        "takes_suffix": limits.block_length is None,  # a block-causal model does not see what follows
    }
