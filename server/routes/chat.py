"""POST /v1/chat/completions."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from server.admission import Admission
from server.body import JsonObject
from server.docs import generation_docs
from server.job import Job
from server.render import Chat
from server.schema import ChatRequest, parse_chat
from server.serving import serve

router = APIRouter(tags=["generation"])


@router.post("/v1/chat/completions", summary="Answer a conversation", **generation_docs(ChatRequest))
async def create_chat_completion(request: Request) -> Response:
    """Messages in, the assistant's next message out, whole or as a stream."""
    return await serve(request, _admit, Chat())


def _admit(admission: Admission, body: JsonObject) -> Job:
    return admission.chat(parse_chat(body))
