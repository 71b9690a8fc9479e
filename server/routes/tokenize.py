"""POST /tokenize and /detokenize, with vLLM's field names."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request
from pydantic import Field

from server.admission import Admission
from server.body import JsonObject, read_json
from server.docs import body_docs
from server.errors import invalid
from server.fields import Bool, Fields, Text, TokenId
from server.schema import ChatMessage, check_messages, parse
from server.state import state_of

router = APIRouter(tags=["tokens"])


class TokenizeRequest(Fields):
    """Either a prompt or messages."""

    model: Text | None = None
    prompt: Text | None = None
    messages: list[ChatMessage] | None = Field(None, min_length=1)
    add_special_tokens: Bool = True
    add_generation_prompt: Bool = True
    return_token_strs: Bool = False


class DetokenizeRequest(Fields):
    """Token ids."""

    model: Text | None = None
    tokens: list[TokenId]


@router.post("/tokenize", summary="Text to token ids", **body_docs(TokenizeRequest))
@router.post("/v1/tokenize", include_in_schema=False)
async def tokenize(request: Request) -> JsonObject:
    """The ids that a prompt or a conversation would be served with."""
    state = state_of(request)
    admission = state.require_ready()
    body = parse(TokenizeRequest, await read_json(request, state.settings.http))
    if body.model is not None:
        state.require_model(body.model)
    return await asyncio.to_thread(_answer, admission, body)


@router.post("/detokenize", summary="Token ids to text", **body_docs(DetokenizeRequest))
@router.post("/v1/detokenize", include_in_schema=False)
async def detokenize(request: Request) -> JsonObject:
    """The text of some ids, special tokens included."""
    state = state_of(request)
    admission = state.require_ready()
    body = parse(DetokenizeRequest, await read_json(request, state.settings.http))
    if body.model is not None:
        state.require_model(body.model)
    limit = admission.facts.limits.vocab_size
    for token_id in body.tokens:
        if token_id >= limit:
            raise invalid("tokens", f"token ids must be between 0 and {limit - 1}, got {token_id}")
    text = await asyncio.to_thread(admission.tokenizer.decode, body.tokens, skip_special=False)
    return {"prompt": text}


def _answer(admission: Admission, body: TokenizeRequest) -> JsonObject:
    ids = _encode(admission, body)
    strings = None
    if body.return_token_strs:
        strings = [admission.tokenizer.decode([token_id], skip_special=False) for token_id in ids]
    limit = admission.facts.limits.max_model_len
    return {"count": len(ids), "max_model_len": limit, "tokens": ids, "token_strs": strings}


def _encode(admission: Admission, body: TokenizeRequest) -> list[int]:
    if (body.prompt is None) == (body.messages is None):
        raise invalid("prompt", "exactly one of prompt and messages is required")
    if body.prompt is not None:
        admission.check_length("prompt", len(body.prompt))
        return admission.tokenizer.encode_text(body.prompt, with_prefix=body.add_special_tokens)
    check_messages(body.messages or [])
    return admission.encode_messages(body.messages or [], add_generation_prompt=body.add_generation_prompt)
