"""OpenAPI entries of routes that read their bodies themselves: the request's schema and every status they answer."""

from __future__ import annotations

from typing import Any, Final, TypedDict

from pydantic import BaseModel

_ERROR_SCHEMA: Final = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}

_STATUSES: Final = {
    400: "The request is wrong or asks for what is not supported; `param` names the field",
    401: "A valid key is required",
    404: "The model does not exist",
    413: "The body is too large",
    408: "The body did not arrive in time",
    422: "Workers died computing this request; it is not tried again",
    429: "The queue is full; try again after Retry-After",
    500: "The worker failed",
    503: "The model is not ready; try again after Retry-After",
    504: "The request took longer than allowed",
}


class RouteDocs(TypedDict):
    """Keyword arguments of a route decorator."""

    response_model: None
    responses: dict[int | str, dict[str, Any]]
    openapi_extra: dict[str, Any]


def error_docs(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The errors of a route, each with the envelope."""
    return {
        status: {"description": _STATUSES[status], "content": {"application/json": {"schema": _ERROR_SCHEMA}}}
        for status in statuses
    }


def body_docs(model: type[BaseModel]) -> RouteDocs:
    """Docs of a route with a JSON body and a JSON answer."""
    responses = error_docs(*_STATUSES)
    responses[200] = {"description": "The answer", "content": {"application/json": {"schema": {"type": "object"}}}}
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    schema = _inline(schema, schema.pop("$defs", {}))
    body = {"required": True, "content": {"application/json": {"schema": schema}}}
    return {"response_model": None, "responses": responses, "openapi_extra": {"requestBody": body}}


def generation_docs(model: type[BaseModel]) -> RouteDocs:
    """Docs of a route that also answers with a stream."""
    docs = body_docs(model)
    docs["responses"][200]["content"]["text/event-stream"] = {"schema": {"type": "string"}}
    return docs


def _inline(node: Any, definitions: dict[str, Any]) -> Any:
    """The schema without references, so that it can stand anywhere."""
    if isinstance(node, list):
        return [_inline(entry, definitions) for entry in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        return _inline(definitions[node["$ref"].rpartition("/")[2]], definitions)
    return {key: _inline(entry, definitions) for key, entry in node.items()}
