"""Addresses of the page with settings in them, and what the API says to the same request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from tests.server.process import ServerProcess
from tests.server.sse import read_stream

PROMPT = "Karl has 7 keys and sells 2 of them to Felix. How many keys are left?"
MIXED = {"policy": "topk", "k": 2, "draft_depth": 3, "acceptance": "token", "cache": "prefix", "block_length": 16}


def link(
    server: ServerProcess, psd: Mapping[str, object], other: Mapping[str, object] | None = None, /, **more: str
) -> str:
    """The page's address with these settings in it."""
    pairs = {"prompt": PROMPT, "request.max_tokens": "32", "request.ignore_eos": "true"}
    pairs |= {f"a.{name}": str(value) for name, value in psd.items()}
    if other is not None:
        pairs |= {"compare": "true"} | {f"b.{name}": str(value) for name, value in other.items()}
    return f"{server.url}/#{urlencode(pairs | more)}"


def ask(
    server: ServerProcess, psd: Mapping[str, object], **more: object
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The canvases and the figures that the API gives for the same request."""
    body = {
        "model": "tiny",
        "prompt": PROMPT,
        "max_tokens": 32,
        "ignore_eos": True,
        "psd": dict(psd),
        "diffusing": True,
    }
    chunks = read_stream(server.client, "/v1/completions", body | more)
    return [chunk["psd"]["canvas"] for chunk in chunks if not chunk["choices"]], chunks[-1]["psd"]
