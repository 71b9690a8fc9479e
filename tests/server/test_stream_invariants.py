"""What holds for every stream: same text as in one piece, whole characters, one end per choice."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from psd_core.events import TokensEvent
from psd_core.request import Request
from server.generation import Track
from server.job import Choice, TextRules
from server.tokenizer import Tokenizer
from tests.server.process import ServerProcess
from tests.server.reciter import ASK_LANGUAGES, LANGUAGES
from tests.server.sse import Chunk, joined_text, read_stream

MESSAGES = [{"role": "user", "content": "Write a story 🚀 about ünïcode."}]
TEXTS = [
    LANGUAGES,
    "👩‍👩‍👧‍👦🏳️‍🌈",
    "नमस्ते दुनिया",
    "한국어 텍스트",
    "\u2028\u0085\r\n\t\x00",
    "a\u0301\u0323",
    "Ἀθῆναι שלום",
]


def assert_one_end(chunks: list[Chunk], num_choices: int) -> None:
    for index in range(num_choices):
        own = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
        assert [choice["finish_reason"] is None for choice in own] == [True] * (len(own) - 1) + [False]
        assert not own[-1].get("text")
        assert not own[-1].get("delta", {}).get("content")


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("endpoint", ["completions", "chat/completions"])
def test_random_bytes_stream_as_the_whole_text(random_server: ServerProcess, endpoint: str, seed: int) -> None:
    asked: dict[str, object] = {"prompt": "Say ✓"} if endpoint == "completions" else {"messages": MESSAGES}
    body = asked | {
        "model": "tiny", "max_tokens": 60, "n": 2, "temperature": 1.5, "seed": seed, "ignore_eos": True,
        "psd": {"policy": "topk", "k": 3, "block_length": 16}, "stop": ["\n\n", "the"],
    }  # fmt: skip  # a table
    whole = random_server.client.post(f"/v1/{endpoint}", json=body).json()["choices"]
    for granularity in ("block", "frontier"):
        options = {"granularity": granularity}
        chunks = read_stream(random_server.client, f"/v1/{endpoint}", body | {"stream_options": options})
        for choice in whole:
            text = choice["text"] if endpoint == "completions" else choice["message"]["content"]
            assert joined_text(chunks, choice["index"]) == text
        assert_one_end(chunks, 2)


@pytest.mark.parametrize("block_length", [4, 7, 32])
def test_emoji_and_scripts_stream_in_whole_characters(reciter: ServerProcess, block_length: int) -> None:
    body = {"model": "tiny", "messages": ASK_LANGUAGES, "max_tokens": 168, "psd": {"block_length": block_length}}
    assert (
        reciter.client.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]["content"] == LANGUAGES
    )
    chunks = read_stream(reciter.client, "/v1/chat/completions", body)
    assert joined_text(chunks) == LANGUAGES
    assert "\ufffd" not in joined_text(chunks)
    assert len(chunks) > 168 // 32


def test_a_chunk_says_all_that_its_object_must(random_server: ServerProcess) -> None:
    body: dict[str, object] = {"model": "tiny", "messages": MESSAGES, "max_tokens": 40, "logprobs": True}
    chunks = read_stream(random_server.client, "/v1/chat/completions", body)
    assert all({"id", "object", "created", "model", "choices"} <= set(chunk) for chunk in chunks)
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        assert {"index", "delta", "logprobs", "finish_reason"} <= set(choice)
    logged = [entry for chunk in chunks for entry in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]]
    whole = random_server.client.post("/v1/chat/completions", json=body).json()["choices"][0]["logprobs"]["content"]
    assert logged == whole


def run_track(tokenizer: Tokenizer, ids: list[int], sizes: list[int], stops: tuple[str, ...]) -> tuple[str, list[str]]:
    """Text of the whole sequence and the texts of its chunks, as the server makes them."""
    request = Request("r", (8,), max(1, len(ids)))
    rules = TextRules(stops, frozenset({1}), 0, skip_special=True, include_stop=False)

    def texts(lengths: list[int]) -> list[str]:
        track = Track(Choice(0, request, ""), rules, tokenizer)
        pieces, start = [], 0
        for length in [*lengths, len(ids)]:
            part = ids[start : start + length]
            start += length
            if part and not track.is_cut:
                pieces.append(track.take(TokensEvent("r", tuple(part), (0.0,) * len(part))).text)
        return [*pieces, track.finish().text]

    return "".join(texts([])), texts(sizes)


@settings(suppress_health_check=list(HealthCheck))
@given(
    text=st.sampled_from(TEXTS) | st.text(max_size=30),
    sizes=st.lists(st.integers(1, 5), max_size=40),
    stops=st.lists(st.sampled_from(["世", "🚀", "\n", "e\u0301", "a", "स्"]), max_size=2).map(tuple),
)
def test_text_in_any_language_is_the_same_in_any_chunks(
    byte_tokenizer: Tokenizer, text: str, sizes: list[int], stops: tuple[str, ...]
) -> None:
    ids = byte_tokenizer.encode_text(text, with_prefix=False)
    whole, pieces = run_track(byte_tokenizer, ids, sizes, stops)
    assert "".join(pieces) == whole
    assert whole == text or any(stop in text for stop in stops)
    assert text.startswith(whole)
    assert not any(stop in whole for stop in stops)
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in pieces)
