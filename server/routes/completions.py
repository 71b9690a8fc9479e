"""POST /v1/completions."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from server.admission import Admission
from server.body import JsonObject
from server.docs import generation_docs
from server.job import Job
from server.render import Completions
from server.schema import CompletionRequest, parse_completion
from server.serving import serve

router = APIRouter(tags=["generation"])


@router.post("/v1/completions", summary="Continue a text", **generation_docs(CompletionRequest))
async def create_completion(request: Request) -> Response:
    """Text or token ids in, text out, whole or as a stream."""
    return await serve(request, _admit, Completions())


def _admit(admission: Admission, body: JsonObject) -> Job:
    return admission.completion(parse_completion(body))
