"""Nobody's neighbours change what somebody gets: 32 mixed requests at once, with faults and leavers, and each alone."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from benchmarks.mixture import Body, draw_requests, is_streamable
from tests.server.process import SLOW, ServerProcess, wait_until
from tests.server.sse import parse_stream
from tests.server.test_faults import EXCEEDS_MEMORY, FAULTS
from tests.server.test_lifecycle import is_idle
from tests.server.test_slow_clients import HEAD

NUM_REQUESTS = 32
NUMBERS = ("token_logprobs", "top_logprobs", "logprob")


@pytest.fixture(scope="module")
def crowded(random_model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Runs 24 sequences in forwards of at most 600 tokens, so that the 32 requests wait and shed drafts."""
    flags = ["--max-num-seqs", "24", "--max-num-batched-tokens", "600", "--max-waiting", "200"]
    with ServerProcess(random_model_path, tmp_path_factory.mktemp("crowded"), flags, variables=FAULTS) as process:
        yield process


def choices_of(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """What an answer says, per choice, without what only says how it came about."""
    return sorted(answer["choices"], key=lambda choice: int(choice["index"]))


def assert_same(given: object, alone: object, where: str) -> None:
    """Equal but for rounding of log-probabilities."""
    if isinstance(alone, float) and isinstance(given, float):
        np.testing.assert_allclose(given, alone, atol=1e-3, err_msg=where)
    elif isinstance(alone, dict) and isinstance(given, dict):
        assert given.keys() == alone.keys(), where
        for key in alone:
            assert_same(given[key], alone[key], f"{where}.{key}")
    elif isinstance(alone, list) and isinstance(given, list):
        assert len(given) == len(alone), where
        for index, pair in enumerate(zip(given, alone, strict=True)):
            assert_same(*pair, f"{where}[{index}]")
    else:
        assert given == alone, where


def joined(chunks: list[dict[str, Any]]) -> dict[int, tuple[str, list[int]]]:
    """Text and token ids of every choice of a stream."""
    said: dict[int, tuple[str, list[int]]] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            text, ids = said.get(choice["index"], ("", []))
            more = choice["text"] if "text" in choice else choice["delta"].get("content") or ""
            said[choice["index"]] = (text + more, ids + choice["token_ids"])
    return said


async def ask(client: httpx.AsyncClient, path: str, body: Body) -> dict[str, Any]:
    response = await client.post(path, json=body)
    assert response.status_code == 200, (response.text, body)
    answer: dict[str, Any] = response.json()
    return answer


async def stream(client: httpx.AsyncClient, path: str, body: Body) -> dict[int, tuple[str, list[int]]]:
    response = await client.post(path, json=body | {"stream": True, "diffusing": len(json.dumps(body)) % 2 == 0})
    assert response.status_code == 200, (response.text, body)
    return joined(parse_stream(response.content))


async def read_slowly(url: str, path: str, body: Body) -> dict[int, tuple[str, list[int]]]:
    """A reader of a diffusing stream that takes 2 KiB at a time, with the least of receive buffers."""
    data = json.dumps(body | {"stream": True, "diffusing": True}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]), limit=2048)
    head = HEAD.replace("/v1/completions", path)
    writer.write(f"{head}Connection: close\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
    raw = b""
    while part := await reader.read(2048):
        raw += part
        await asyncio.sleep(0.001)  # slower than the server, not a wait for anything
    writer.close()
    return joined(parse_stream(unchunked(raw)))


def unchunked(raw: bytes) -> bytes:
    """The body of an answer in HTTP's chunks."""
    rest, body = raw.partition(b"\r\n\r\n")[2], b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        body += rest[: int(size, 16)]
        rest = rest[int(size, 16) + 2 :]
    return body


async def intrude(client: httpx.AsyncClient, num: int) -> None:
    """Requests that make batches fail for want of memory, and requests whose clients leave."""
    for index in range(num):
        body = {"model": "tiny", "max_tokens": 24, "ignore_eos": True, "psd": SLOW}
        if index % 2:
            await client.post("/v1/completions", json=body | {"prompt": [EXCEEDS_MEMORY, index]})
        else:
            try:
                async with asyncio.timeout(0.05):
                    await client.post("/v1/completions", json=body | {"prompt": "leave", "n": 4, "max_tokens": 400})
            except TimeoutError:
                pass


@pytest.mark.parametrize("seed", [1, 2])
def test_32_mixed_requests_at_once_get_what_each_gets_alone(crowded: ServerProcess, seed: int) -> None:
    drawn = draw_requests(random.Random(seed), 3 * NUM_REQUESTS, "tiny")
    drawn = [(path, body | {"return_token_ids": True}) for path, body in drawn]

    async def run() -> None:
        async with httpx.AsyncClient(base_url=crowded.url, timeout=120) as client:
            served = []
            for path, body in drawn[:NUM_REQUESTS]:
                served.append((path, body, await ask(client, path, body)))
            intruders = asyncio.gather(intrude(client, 6), intrude(client, 6))
            again = asyncio.gather(*(ask(client, path, body) for path, body, _ in served))
            streamable = [entry for entry in served if is_streamable(entry[1])]
            streams = asyncio.gather(*(stream(client, path, body) for path, body, _ in streamable[::2]))
            slow = asyncio.gather(*(read_slowly(crowded.url, path, body) for path, body, _ in streamable[1::4]))
            for answer, (_, body, alone) in zip(await again, served, strict=True):
                assert_same(choices_of(answer), choices_of(alone), json.dumps(body))
                assert answer["usage"]["completion_tokens"] == alone["usage"]["completion_tokens"]
            for said, entries in ((await streams, streamable[::2]), (await slow, streamable[1::4])):
                for got, (_, body, alone) in zip(said, entries, strict=True):
                    assert got == whole_of(alone), json.dumps(body)
            await intruders

    asyncio.run(run())
    assert crowded.metric("psd_forwards_out_of_memory_total") > 0
    assert crowded.metric('psd_requests_total{endpoint="completions",finish_reason="cancelled"}') > 0
    wait_until(lambda: is_idle(crowded))
    assert "Traceback" not in crowded.log


def whole_of(answer: dict[str, Any]) -> dict[int, tuple[str, list[int]]]:
    """Text and token ids of every choice."""
    return {
        choice["index"]: (choice["text"] if "text" in choice else choice["message"]["content"], choice["token_ids"])
        for choice in answer["choices"]
    }


def test_the_mixture_holds_what_it_is_for() -> None:
    """A draw without a setting would prove nothing about it."""
    for seed in (1, 2):
        drawn = [body for _, body in draw_requests(random.Random(seed), NUM_REQUESTS)]
        decoders = [body["psd"] for body in drawn]
        assert {decoder["cache"] for decoder in decoders} == {"none", "prefix", "dual"}
        assert {decoder["acceptance"] for decoder in decoders} == {"exact", "subset", "token"}
        assert any(decoder["policy"] == "lopa" for decoder in decoders)
        assert any("edit_threshold" in decoder for decoder in decoders)
        for name in (
            *("suffix", "echo", "logprobs", "top_logprobs", "best_of", "logit_bias", "presence_penalty"),
            *("repetition_penalty", "min_p", "temperature", "stop", "max_completion_tokens", "messages"),
        ):
            assert any(name in body for body in drawn), (seed, name)
