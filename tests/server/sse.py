"""Reading a stream as bytes, so that tests see every frame as it was sent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import httpx

Chunk = dict[str, Any]


def read_stream(client: httpx.Client, path: str, body: Mapping[str, object]) -> list[Chunk]:
    """All chunks of a stream; asserts the framing: LF only, one data line per event, [DONE] last."""
    with client.stream("POST", path, json={**body, "stream": True}) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        raw = response.read()
    return parse_stream(raw)


def parse_stream(raw: bytes) -> list[Chunk]:
    """The JSON of every event but the last, which must be [DONE]."""
    assert b"\r" not in raw
    assert raw.endswith(b"data: [DONE]\n\n")
    frames = raw.decode("utf-8").removesuffix("\n\n").split("\n\n")
    assert all(frame.startswith("data: ") and "\n" not in frame for frame in frames)
    return [json.loads(frame.removeprefix("data: ")) for frame in frames[:-1]]


def joined_text(chunks: list[Chunk], index: int = 0) -> str:
    """Text of one choice of a completion or chat stream."""
    parts = [choice for chunk in chunks for choice in chunk.get("choices", []) if choice["index"] == index]
    return "".join(part["text"] if "text" in part else part["delta"].get("content", "") for part in parts)
