"""Streams: framing, one terminal chunk per choice, and joined text equal to the whole answer."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tests.server.process import ServerProcess
from tests.server.sse import joined_text, read_stream

BODY = {"model": "tiny", "prompt": "Write a story 🚀 about ünïcode.", "ignore_eos": True}


@pytest.mark.parametrize("granularity", ["block", "frontier"])
@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": 75},
        {"max_tokens": 75, "temperature": 1.3, "seed": 11},
        {"max_tokens": 75, "skip_special_tokens": False, "stop": ["\n\n\n", "the end"]},
        {"max_tokens": 40, "psd": {"policy": "topk", "k": 8, "block_length": 8}},
    ],
)
def test_the_joined_stream_is_the_whole_text(
    server: ServerProcess, fields: dict[str, object], granularity: str
) -> None:
    whole = server.client.post("/v1/completions", json=BODY | fields).json()["choices"][0]
    body = BODY | fields | {"stream_options": {"granularity": granularity}}
    chunks = read_stream(server.client, "/v1/completions", body)
    assert joined_text(chunks) == whole["text"]
    assert chunks[-1]["choices"][0]["finish_reason"] == whole["finish_reason"]


def test_every_stop_string_cuts_the_stream_like_the_whole_text(random_server: ServerProcess) -> None:
    text = random_server.client.post("/v1/completions", json=BODY | {"max_tokens": 64}).json()["choices"][0]["text"]
    for start in range(0, len(text) - 3, 7):
        stop = text[start : start + 3]
        body = BODY | {"max_tokens": 64, "stop": stop, "stream_options": {"granularity": "frontier"}}
        chunks = read_stream(random_server.client, "/v1/completions", body)
        assert joined_text(chunks) == text[: text.index(stop)]
        assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


def test_there_is_one_terminal_chunk_per_choice_without_text(server: ServerProcess) -> None:
    chunks = read_stream(server.client, "/v1/completions", BODY | {"max_tokens": 40, "n": 3})
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    for index in range(3):
        own = [choice for choice in choices if choice["index"] == index]
        assert [choice["finish_reason"] for choice in own[:-1]] == [None] * (len(own) - 1)
        assert own[-1]["finish_reason"] == "length"
        assert own[-1]["text"] == ""
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1


def test_blocks_arrive_as_chunks_of_their_own(random_server: ServerProcess) -> None:
    body = BODY | {"max_tokens": 96, "psd": {"block_length": 32}}
    chunks = read_stream(random_server.client, "/v1/completions", body)
    assert len([chunk for chunk in chunks if chunk["choices"][0]["text"]]) >= 3


def test_usage_comes_only_when_asked_and_last(server: ServerProcess) -> None:
    plain = read_stream(server.client, "/v1/completions", BODY | {"max_tokens": 8})
    assert all("usage" not in chunk for chunk in plain)
    assert plain[-1]["psd"]["forwards"] >= 1
    body = BODY | {"max_tokens": 8, "stream_options": {"include_usage": True}}
    asked = read_stream(server.client, "/v1/completions", body)
    assert all(chunk["usage"] is None for chunk in asked[:-1])
    assert asked[-1]["choices"] == []
    assert asked[-1]["usage"]["completion_tokens"] == 8
    assert asked[-1]["psd"]["forwards"] >= 1


def test_running_usage_grows_to_the_total(server: ServerProcess) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = read_stream(server.client, "/v1/completions", BODY | {"max_tokens": 70, "stream_options": options})
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[-1] == 70


def test_streamed_token_ids_join_to_the_whole_ones(server: ServerProcess) -> None:
    body = BODY | {"max_tokens": 50, "return_token_ids": True}
    whole = server.client.post("/v1/completions", json=body).json()["choices"][0]
    choices = [chunk["choices"][0] for chunk in read_stream(server.client, "/v1/completions", body)]
    assert [token_id for choice in choices for token_id in choice["token_ids"]] == whole["token_ids"]
    assert choices[0]["prompt_token_ids"] == whole["prompt_token_ids"]
    assert all("prompt_token_ids" not in choice for choice in choices[1:])


def test_echo_comes_first(server: ServerProcess) -> None:
    chunks = read_stream(server.client, "/v1/completions", BODY | {"max_tokens": 8, "echo": True})
    assert chunks[0]["choices"][0]["text"] == BODY["prompt"]


def test_diffusing_shows_canvases_without_disturbing_the_text(server: ServerProcess) -> None:
    body = BODY | {"max_tokens": 40, "psd": {"block_length": 16}}
    chunks = read_stream(server.client, "/v1/completions", body | {"diffusing": True})
    canvases = [chunk["psd"]["canvas"] for chunk in chunks if not chunk["choices"]]
    assert canvases
    assert all(len(canvas["token_ids"]) == len(canvas["tokens"]) == 16 for canvas in canvases)
    assert joined_text(chunks) == joined_text(read_stream(server.client, "/v1/completions", body))


@pytest.mark.parametrize(
    ("block_length", "psd"),
    [
        (16, {"draft_depth": 3, "policy": "greedy"}),
        (32, {"draft_depth": 3, "acceptance": "token", "cache": "prefix"}),
    ],
)
def test_canvases_tell_of_every_token_when_and_how_it_was_decided(
    server: ServerProcess, block_length: int, psd: dict[str, object]
) -> None:
    psd = psd | {"block_length": block_length}
    body = BODY | {"max_tokens": 40, "psd": psd, "diffusing": True, "return_token_ids": True}
    chunks = read_stream(server.client, "/v1/completions", body)
    canvases = [chunk["psd"]["canvas"] for chunk in chunks if not chunk["choices"]]
    figures = chunks[-1]["psd"]
    assert [canvas["forwards"] for canvas in canvases] == list(range(1, figures["forwards"] + 1))
    assert {canvas["length"] for canvas in canvases} == {-(-40 // block_length) * block_length}
    decided: dict[int, int] = {}
    for before, canvas in zip([None, *canvases], canvases, strict=False):
        fresh = {}
        for offset, (token_id, candidate, depth) in enumerate(
            zip(canvas["token_ids"], canvas["candidates"], canvas["depths"], strict=True)
        ):
            position = canvas["start"] + offset
            assert (token_id is None) == (depth is None)
            assert token_id is None or candidate is None
            assert position not in decided or decided[position] == token_id
            if token_id is not None and position not in decided:
                fresh[position], decided[position] = depth, token_id
        held = [depth for depth in fresh.values() if depth > 0]
        assert len(held) == canvas["accepted"]
        assert len(canvas["rejected"]) == canvas["drafted"] - canvas["accepted"]
        assert canvas["phase"] == "denoise" or not canvas["drafted"]
        steps = canvas["steps"] - (before["steps"] if before else 0)
        assert len(set(held)) <= steps <= len(set(held)) + 1
    assert sum(canvas["accepted"] for canvas in canvases) == figures["accepted_tokens"]
    assert sum(canvas["phase"] == "refresh" for canvas in canvases) == figures["refresh_forwards"]
    assert sum(canvas["rows"] for canvas in canvases) == figures["rows"]
    returned = [token_id for chunk in chunks for choice in chunk["choices"] for token_id in choice["token_ids"]]
    assert [decided[position] for position in range(40)] == returned


def test_a_refusal_is_a_status_and_not_a_stream(server: ServerProcess) -> None:
    response = server.client.post("/v1/completions", json=BODY | {"stream": True, "max_tokens": 100_000})
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"


def test_streams_pass_proxies_unbuffered(server: ServerProcess) -> None:
    with server.client.stream("POST", "/v1/completions", json=BODY | {"stream": True, "max_tokens": 1}) as response:
        assert response.headers["x-accel-buffering"] == "no"
        assert response.headers["cache-control"] == "no-cache"
        assert response.headers["x-request-id"]
        response.read()


def test_silence_is_filled_with_comments_that_clients_skip(random_model_path: Path, tmp_path: Path) -> None:
    with ServerProcess(random_model_path, tmp_path, ["--ping-interval", "0.001"]) as server:
        body = BODY | {"stream": True, "max_tokens": 256, "psd": {"policy": "greedy", "block_length": 256}}
        raw = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).content
    assert b": ping\n\n" in raw
    assert b"event:" not in raw
