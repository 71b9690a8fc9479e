"""POST /tokenize and /detokenize and GET /tokenizer_info, with vLLM's field names."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request
from pydantic import Field

from server.admission import Admission
from server.body import JsonObject, read_json
from server.conversation import ChatMessage, ConversationFields, check_conversation
from server.docs import body_docs, error_docs
from server.errors import invalid
from server.fields import Bool, Fields, Text, TokenId
from server.schema import parse
from server.state import state_of

router = APIRouter(tags=["tokens"])


class TokenizeRequest(ConversationFields):
    """Either a prompt or messages.

    A special token's text in the prompt is that token, as evaluation tools expect of this endpoint; with parse_special:
    false it is ordinary text, as it always is in the prompt of /v1/completions.
    """

    model: Text | None = None
    prompt: Text | None = None
    messages: list[ChatMessage] | None = Field(None, min_length=1)
    add_special_tokens: Bool = True
    parse_special: Bool = True
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


@router.get("/tokenizer_info", summary="What the tokenizer's own config says", responses=error_docs(401, 503))
@router.get("/v1/tokenizer_info", include_in_schema=False)
async def tokenizer_info(request: Request) -> JsonObject:
    """tokenizer_config.json, with the class of the tokenizer and the chat template that is in force."""
    admission = state_of(request).require_ready()
    config: JsonObject = {"tokenizer_class": "PreTrainedTokenizerFast", **admission.tokenizer.config}
    return config | {"chat_template": None if admission.template is None else admission.template.source}


def _answer(admission: Admission, body: TokenizeRequest) -> JsonObject:
    ids = _encode(admission, body)
    strings = None
    if body.return_token_strs:
        strings = [admission.tokenizer.decode_part([token_id]) for token_id in ids]
    limit = admission.facts.limits.max_model_len
    return {"count": len(ids), "max_model_len": limit, "tokens": ids, "token_strs": strings}


def _encode(admission: Admission, body: TokenizeRequest) -> list[int]:
    if (body.prompt is None) == (body.messages is None):
        raise invalid("prompt", "exactly one of prompt and messages is required")
    if body.prompt is not None:
        admission.check_length("prompt", len(body.prompt))
        return admission.tokenizer.encode_text(
            body.prompt, with_prefix=body.add_special_tokens, parses_special=body.parse_special
        )
    messages = body.messages or []
    check_conversation(body, messages)
    return admission.encode_messages(body, messages)
