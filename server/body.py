"""A request body to a JSON object: bounded while it is read, strict, and every fault is a 4xx.

A key that stands twice in an object is refused: whoever checked the request before us may have read the other one.
"""

from __future__ import annotations

import asyncio
import json
import math
import sys
import time
from typing import NoReturn, Protocol

from starlette.requests import ClientDisconnect, Request

from server.errors import ApiError, invalid, too_slow
from server.tuning import DISCARD_FACTOR, DISCARD_SECONDS, MAX_JSON_DEPTH

JsonObject = dict[str, object]


class BodyLimits(Protocol):
    """How large a body may be, and how long it may take to arrive."""

    @property
    def max_body_bytes(self) -> int:
        """Bytes as they are sent."""

    @property
    def read_seconds(self) -> float:
        """From the first look at the body to its last byte."""


async def read_json(request: Request, limits: BodyLimits) -> JsonObject:
    """The body as a JSON object. ApiError 400, 408 or 413; ClientDisconnect passes through."""
    _check_headers(request)
    try:
        async with asyncio.timeout(limits.read_seconds):
            body = await _read(request, limits.max_body_bytes)
    except TimeoutError:
        raise too_slow(f"the body did not arrive within {limits.read_seconds:g} s") from None
    return parse_object(body)


def parse_object(body: bytes) -> JsonObject:
    """Strict JSON: UTF-8, one object, finite numbers, no lone surrogates, bounded nesting."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise invalid(None, f"the body is not valid UTF-8 at byte {error.start}", "invalid_json") from None
    try:
        value = json.loads(text, parse_constant=_refuse_constant, parse_float=_parse_float, object_pairs_hook=_object)
    except RecursionError:
        raise _too_deep() from None
    except (json.JSONDecodeError, _Refused) as error:
        raise invalid(None, f"the body is not valid JSON: {str(error)[:200]}", "invalid_json") from None
    except ValueError:  # from Python's reading of integers, in words for programmers
        limit = sys.get_int_max_str_digits()
        raise invalid(None, f"an integer in the body has more than {limit} digits", "invalid_json") from None
    if not isinstance(value, dict):
        raise invalid(None, f"the body must be a JSON object, got {json_kind(value)}", "invalid_json")
    _check_tree(value)
    return value


def _check_headers(request: Request) -> None:
    content_type = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if content_type != "application/json" and not content_type.endswith("+json"):
        raise invalid(
            None, f"Content-Type must be application/json, got {content_type[:100]!r}", "invalid_content_type"
        )
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        raise invalid(None, f"Content-Encoding {encoding[:100]!r} is not supported", "invalid_content_encoding")


async def _read(request: Request, max_bytes: int) -> bytes:
    """The body, never more than `max_bytes` of it in memory.

    The rest of a larger body is thrown away for a while before the refusal: a client that is still sending when the
    connection closes would see a broken connection instead of the answer.
    """
    chunks: list[bytes] = []
    size = 0
    deadline = math.inf
    async for chunk in request.stream():
        size += len(chunk)
        if size <= max_bytes:
            chunks.append(chunk)
            continue
        chunks.clear()
        deadline = min(deadline, time.monotonic() + DISCARD_SECONDS)
        if size > DISCARD_FACTOR * max_bytes or time.monotonic() > deadline:
            break
    if size > max_bytes:
        raise _too_large(max_bytes)
    return b"".join(chunks)


def _too_large(max_bytes: int) -> ApiError:
    return ApiError(
        413, "body_too_large", f"the body is larger than {max_bytes} bytes", headers={"Connection": "close"}
    )


def _too_deep() -> ApiError:
    return invalid(None, f"the body is nested deeper than {MAX_JSON_DEPTH} levels", "invalid_json")


class _Refused(ValueError):
    """What Python's parser would take, but a request must not hold."""


def _refuse_constant(name: str) -> NoReturn:
    raise _Refused(f"{name} is not a JSON number")


def _object(pairs: list[tuple[str, object]]) -> JsonObject:
    entries = dict(pairs)
    if len(entries) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _Refused(f"the key {key[:100]!r} stands twice in one object")
            seen.add(key)
    return entries


def _parse_float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise _Refused(f"number {text[:40]} is out of range")
    return number


def _check_tree(root: JsonObject) -> None:
    """Refuse lone surrogates, which no UTF-8 answer could carry, and nesting beyond any real request."""
    level: list[object] = [root]
    for _ in range(MAX_JSON_DEPTH):
        below: list[object] = []
        for node in level:
            if isinstance(node, str):
                _check_text(node)
            elif isinstance(node, list):
                below += node
            elif isinstance(node, dict):
                below += node.keys()
                below += node.values()
        if not below:
            return
        level = below
    raise _too_deep()


def _check_text(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise invalid(
            None, f"a string holds a lone surrogate, U+{ord(text[error.start]):04X}", "invalid_unicode"
        ) from None


def in_json(value: object) -> str:
    """A value as JSON writes it, cut after 40 characters; of an object or an array only what it is."""
    return json_kind(value) if isinstance(value, dict | list) else json.dumps(value, ensure_ascii=False)[:40]


def json_kind(value: object) -> str:
    """What JSON calls a value, for messages about one that is too large to show."""
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


__all__ = ["ClientDisconnect", "JsonObject", "in_json", "json_kind", "parse_object", "read_json"]
