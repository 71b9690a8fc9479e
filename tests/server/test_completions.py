"""POST /v1/completions, whole answers: shape, counts, and every request field that is supported."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from server.tokenizer import Tokenizer
from tests.server.process import SLOW, ServerProcess

LONG = {"ignore_eos": True, "max_tokens": 40}


def test_an_answer_has_openai_s_shape_and_the_decoder_s_figures(server: ServerProcess) -> None:
    response = server.complete(max_tokens=8)
    assert response.status_code == 200
    answer = response.json()
    assert answer["id"].startswith("cmpl-")
    assert answer["object"] == "text_completion"
    assert answer["model"] == "tiny"
    (choice,) = answer["choices"]
    assert set(choice) == {"index", "text", "logprobs", "finish_reason"}
    usage = answer["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    psd = answer["psd"]
    assert psd["forwards"] >= 1
    assert psd["tokens_per_forward"] == pytest.approx(usage["completion_tokens"] / psd["forwards"], abs=1e-4)
    assert (psd["policy"], psd["acceptance"], psd["draft_depth"]) == ("threshold", "exact", "auto")


@pytest.mark.parametrize("max_tokens", [1, 15, 16, 17, 33])
def test_max_tokens_is_exact_for_any_value(server: ServerProcess, max_tokens: int) -> None:
    answer = server.complete(max_tokens=max_tokens, ignore_eos=True).json()
    assert answer["usage"]["completion_tokens"] == max_tokens
    assert answer["choices"][0]["finish_reason"] == "length"


def test_max_tokens_is_16_by_default(server: ServerProcess) -> None:
    assert server.complete(ignore_eos=True).json()["usage"]["completion_tokens"] == 16


def test_a_stop_token_counts_and_ends_the_text(server: ServerProcess) -> None:
    free = server.complete(**LONG, return_token_ids=True).json()["choices"][0]["token_ids"]
    stop = free[5]
    answer = server.complete(**LONG, return_token_ids=True, stop_token_ids=[stop]).json()
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["choices"][0]["token_ids"][-1] == stop
    assert answer["usage"]["completion_tokens"] == len(answer["choices"][0]["token_ids"])


def test_a_stop_string_cuts_exactly_and_ends_the_work(server: ServerProcess) -> None:
    fields = {"ignore_eos": True, "max_tokens": 64, "psd": SLOW | {"block_length": 8}, "skip_special_tokens": False}
    free = server.complete(**fields).json()
    text = free["choices"][0]["text"]
    stop = text[10:12]
    answer = server.complete(**fields, stop=["never this", stop]).json()
    assert answer["choices"][0]["text"] == text[: text.index(stop)]
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] <= free["usage"]["completion_tokens"]
    assert answer["psd"]["forwards"] < free["psd"]["forwards"]


def test_the_stop_string_stays_on_request(server: ServerProcess) -> None:
    text = server.complete(**LONG, skip_special_tokens=False).json()["choices"][0]["text"]
    stop = text[4:6]
    fields = LONG | {"skip_special_tokens": False, "stop": stop, "include_stop_str_in_output": True}
    answer = server.complete(**fields).json()
    assert answer["choices"][0]["text"] == text[: text.index(stop) + len(stop)]


def test_choices_are_ordered_by_prompt_then_n(server: ServerProcess) -> None:
    answer = server.complete(prompt=["a", "b"], n=2, max_tokens=4, return_token_ids=True).json()
    choices = answer["choices"]
    assert [choice["index"] for choice in choices] == [0, 1, 2, 3]
    assert choices[0]["prompt_token_ids"] == choices[1]["prompt_token_ids"] != choices[2]["prompt_token_ids"]
    prompts = {tuple(choice["prompt_token_ids"]) for choice in choices}
    assert answer["usage"]["prompt_tokens"] == sum(map(len, prompts))
    assert answer["usage"]["completion_tokens"] == sum(len(choice["token_ids"]) for choice in choices)


def test_token_ids_and_text_are_the_same_prompt(server: ServerProcess, model_path: Path) -> None:
    ids = Tokenizer(model_path).encode_text("What is 7 + 5?")
    text = server.complete(max_tokens=8).json()
    assert server.complete(prompt=ids, max_tokens=8).json()["choices"] == text["choices"]
    assert server.complete(prompt=[ids], max_tokens=8).json()["choices"] == text["choices"]


def test_echo_repeats_the_prompt(server: ServerProcess) -> None:
    plain = server.complete(max_tokens=8).json()["choices"][0]["text"]
    assert server.complete(max_tokens=8, echo=True).json()["choices"][0]["text"] == "What is 7 + 5?" + plain


def test_a_prompt_with_the_mask_s_text_is_ordinary_text(server: ServerProcess) -> None:
    answer = server.complete(prompt="a<|mask|>b", max_tokens=1, return_token_ids=True).json()
    assert len(answer["choices"][0]["prompt_token_ids"]) > 3


def test_a_seed_reproduces_the_text_and_choices_differ(random_server: ServerProcess) -> None:
    fields = {"temperature": 1.5, "max_tokens": 32, "ignore_eos": True, "n": 2, "seed": 5, "return_token_ids": True}
    first, second = (random_server.complete(**fields).json()["choices"] for _ in range(2))
    assert first == second
    assert first[0]["token_ids"] != first[1]["token_ids"]


def test_absent_seeds_differ(random_server: ServerProcess) -> None:
    fields = {"temperature": 2.0, "max_tokens": 32, "ignore_eos": True, "return_token_ids": True}
    assert random_server.complete(**fields).json()["choices"] != random_server.complete(**fields).json()["choices"]


@pytest.mark.parametrize(
    "psd",
    [
        {"policy": "greedy", "draft_depth": 0},
        {"policy": "greedy", "draft_depth": "auto"},
        {"policy": "topk", "k": 4, "draft_depth": 5, "draft_increment": "policy", "acceptance": "subset"},
        {"policy": "threshold", "threshold": 0.5, "block_length": 8, "acceptance": "token"},
        {"cache": "dual", "block_length": 16, "canvas_blocks": 1},
    ],
)
def test_a_request_sets_its_own_decoder(server: ServerProcess, psd: dict[str, object]) -> None:
    response = server.complete(max_tokens=20, ignore_eos=True, psd=psd)
    assert response.status_code == 200
    assert response.json()["usage"]["completion_tokens"] == 20
    assert psd.items() <= response.json()["psd"].items()


def test_only_what_was_used_of_the_drafting_is_named(server: ServerProcess) -> None:
    assert server.complete(max_tokens=4, psd={"acceptance": "token"}).json()["psd"]["draft_depth"] == 3
    used = server.complete(max_tokens=4, psd={"policy": "lopa"}).json()["psd"]
    assert used["branches"] == 5
    assert not {"draft_depth", "draft_increment", "acceptance"} & set(used)


def test_logprobs_cover_every_returned_token(server: ServerProcess) -> None:
    answer = server.complete(max_tokens=12, ignore_eos=True, logprobs=1, return_token_ids=True).json()
    choice = answer["choices"][0]
    logprobs = choice["logprobs"]
    assert len(logprobs["tokens"]) == len(logprobs["token_logprobs"]) == len(choice["token_ids"]) == 12
    assert all(value <= 0.0 for value in logprobs["token_logprobs"])
    assert [list(top.values()) for top in logprobs["top_logprobs"]] == [[value] for value in logprobs["token_logprobs"]]
    assert all(
        choice["text"].startswith(token, offset)
        for token, offset in zip(logprobs["tokens"], logprobs["text_offset"], strict=True)
    )


def test_the_client_s_request_id_comes_back_if_it_is_harmless(server: ServerProcess) -> None:
    url, body = "/v1/completions", {"model": "tiny", "prompt": "a", "max_tokens": 1}

    def returned(given: str) -> str:
        response = server.client.post(url, json=body, headers={"x-request-id": given})
        return str(response.headers["x-request-id"])

    assert returned("order-66") == "order-66"
    assert returned("a" * 129).startswith("req-")
    assert returned("a\tb").startswith("req-")


def test_a_trailing_slash_is_no_redirect(server: ServerProcess) -> None:
    response = server.client.post("/v1/completions/", json={"model": "tiny", "prompt": "a", "max_tokens": 1})
    assert response.status_code == 200


def test_equal_requests_in_parallel_get_equal_answers(server: ServerProcess) -> None:
    def ask(_: int) -> httpx.Response:
        return server.complete(max_tokens=24, ignore_eos=True)

    with ThreadPoolExecutor(8) as executor:
        answers = [response.json()["choices"] for response in executor.map(ask, range(16))]
    assert all(answer == answers[0] for answer in answers)
