"""Fields that change what is chosen or what is told about it: bias, penalties, best_of, suffix, log-probabilities."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.process import SLOW, ServerProcess
from tests.server.sse import read_stream

PROMPT = "What is 7 + 5? Ä"


def test_bias_forces_one_token(server: ServerProcess) -> None:
    answer = server.complete(max_tokens=6, logit_bias={"73": 100}, return_token_ids=True).json()
    assert answer["choices"][0]["token_ids"] == [73] * 6


def test_penalties_change_a_repetitive_answer(server: ServerProcess) -> None:
    fields = {"max_tokens": 24, "ignore_eos": True, "return_token_ids": True, "psd": SLOW}
    fields["logit_bias"] = {str(token): 60 for token in range(70, 120)}  # letters; which is likeliest hardly matters
    free = server.complete(**fields).json()["choices"][0]["token_ids"]
    for penalty in ({"presence_penalty": 2}, {"frequency_penalty": 2}, {"repetition_penalty": 2}):
        assert server.complete(**fields, **penalty).json()["choices"][0]["token_ids"] != free


def test_min_p_of_one_is_greedy(server: ServerProcess) -> None:
    plain = server.complete(max_tokens=12).json()["choices"][0]["text"]
    assert server.complete(max_tokens=12, temperature=2, min_p=1, seed=5).json()["choices"][0]["text"] == plain


def test_best_of_returns_the_likeliest_and_bills_all(server: ServerProcess) -> None:
    fields = {"max_tokens": 8, "temperature": 1.0, "seed": 3, "ignore_eos": True, "logprobs": 0}
    every = server.complete(**fields, n=4).json()["choices"]
    means = [sum(choice["logprobs"]["token_logprobs"]) / 8 for choice in every]
    ranked = sorted(range(4), key=lambda index: -means[index])
    answer = server.complete(**fields, n=2, best_of=4).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    assert [choice["text"] for choice in answer["choices"]] == [every[index]["text"] for index in ranked[:2]]
    assert answer["usage"]["completion_tokens"] == 32


def test_a_suffix_counts_as_prompt_and_the_fill_has_its_length(server: ServerProcess) -> None:
    fields = {"prompt": PROMPT, "max_tokens": 11, "ignore_eos": True, "return_token_ids": True}
    plain = server.complete(**fields).json()
    filled = server.complete(**fields, suffix=" and so on.").json()
    assert len(filled["choices"][0]["token_ids"]) == 11
    assert filled["usage"]["prompt_tokens"] > plain["usage"]["prompt_tokens"]
    assert filled["choices"][0]["text"] != plain["choices"][0]["text"]
    assert server.complete(**fields, suffix="").json()["choices"] == plain["choices"]


@pytest.mark.parametrize("max_tokens", [0, 5])
@pytest.mark.parametrize("prompt", [PROMPT, [20, 1, 30, 200, 40], [20]])
def test_echo_with_logprobs_covers_prompt_and_answer(
    server: ServerProcess, max_tokens: int, prompt: str | list[int]
) -> None:
    fields = {"prompt": prompt, "max_tokens": max_tokens, "echo": True, "logprobs": 2, "ignore_eos": True}
    answer = server.complete(**fields, return_token_ids=True).json()
    (choice,) = answer["choices"]
    logprobs = choice["logprobs"]
    num_tokens = answer["usage"]["prompt_tokens"] + max_tokens
    assert {len(entries) for entries in logprobs.values()} == {num_tokens}
    assert logprobs["token_logprobs"][0] is logprobs["top_logprobs"][0] is None
    assert all(value <= 0 for value in logprobs["token_logprobs"][1:])
    assert all(max(top.values()) >= value - 1e-6 for top, value in _pairs(logprobs))
    assert len(choice["token_ids"]) == max_tokens
    assert choice["finish_reason"] == "length"
    if isinstance(prompt, str):
        assert "".join(logprobs["tokens"][: answer["usage"]["prompt_tokens"]]) == prompt
    assert choice["text"].startswith("".join(logprobs["tokens"][: answer["usage"]["prompt_tokens"]]))


def _pairs(logprobs: dict[str, Any]) -> list[tuple[dict[str, float], float]]:
    return list(zip(logprobs["top_logprobs"][1:], logprobs["token_logprobs"][1:], strict=True))


@pytest.mark.parametrize(("prompt", "max_tokens"), [(PROMPT, 12), ([20], 12), (PROMPT, 0), ([20], 0)])
def test_a_stream_with_echo_and_logprobs_joins_to_the_whole_answer(
    server: ServerProcess, prompt: str | list[int], max_tokens: int
) -> None:
    fields = {
        "prompt": prompt,
        "max_tokens": max_tokens,
        "echo": True,
        "logprobs": 1,
        "ignore_eos": True,
        "model": "tiny",
    }
    whole = server.client.post("/v1/completions", json=fields).json()["choices"][0]
    chunks = read_stream(server.client, "/v1/completions", fields | {"stream": True})
    parts = [chunk["choices"][0] for chunk in chunks if chunk["choices"]]
    assert "".join(part["text"] for part in parts) == whole["text"]
    told = [part["logprobs"] for part in parts if part["logprobs"]]
    for key, expected in whole["logprobs"].items():
        joined = [entry for logprobs in told for entry in logprobs[key]]
        assert joined == (pytest.approx(expected) if key == "token_logprobs" else expected)


def test_no_tokens_is_an_empty_answer_at_once(server: ServerProcess) -> None:
    answer = server.complete(max_tokens=0).json()
    assert (answer["choices"][0]["text"], answer["choices"][0]["finish_reason"]) == ("", "length")
    assert answer["usage"]["completion_tokens"] == answer["psd"]["forwards"] == 0


def test_alternatives_come_with_every_chat_token(server: ServerProcess) -> None:
    fields = {"max_tokens": 6, "ignore_eos": True, "logprobs": True, "top_logprobs": 5, "temperature": 1, "seed": 1}
    content = server.chat(**fields).json()["choices"][0]["logprobs"]["content"]
    assert len(content) == 6
    for entry in content:
        values = [top["logprob"] for top in entry["top_logprobs"]]
        assert len(values) == 5
        assert values == sorted(values, reverse=True)
        assert values[0] >= entry["logprob"] - 1e-6
