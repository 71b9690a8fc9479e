"""Whatever a client sends, it gets a 4xx in OpenAI's envelope, and the server goes on."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator

import httpx
import pytest

from tests.server.process import ServerProcess

URL = "/v1/completions"
BASE = {"model": "tiny", "prompt": "a"}


def post(server: ServerProcess, content: bytes, **headers: str) -> httpx.Response:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return server.client.post(URL, content=content, headers={"content-type": "application/json"} | names)


def assert_envelope(response: httpx.Response, status: int) -> dict[str, str | None]:
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    assert isinstance(body["error"]["code"], str)
    assert response.headers["x-request-id"]
    error: dict[str, str | None] = body["error"]
    return error


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"text"',
        b'{"model":"tiny","prompt":"a","temperature":NaN}',
        b'{"model":"tiny","prompt":"a","temperature":1e999}',
        b'{"model":"tiny","prompt":"a","temperature":-Infinity}',
        b'{"model":"tiny","prompt":"\\ud83d"}',
        b'{"model":"tiny","prompt":"a","\\udc00":1}',
        b'{"model":"tiny","prompt":"\xff"}',
        b"\xef\xbb\xbf{}",
        b"[" * 100_000,
        b'{"a":' * 100 + b"1" + b"}" * 100,
        b'{"model":"tiny","prompt":"a","seed":' + b"9" * 5000 + b"}",
        b'{"model":"tiny","prompt":"a","prompt":"b"}',
        b'{"model":"tiny","prompt":"a","psd":{"k":1,"k":2}}',
        b'{"model":"tiny","prompt":"a","\\u0070rompt":"b"}',
        b"{" + b'"a":1,' * 100_000 + b'"a":1}',
        '{"model":"tiny"}'.encode("utf-16"),
    ],
    ids=lambda content: repr(content[:40]),
)
def test_a_broken_body_is_a_400(server: ServerProcess, content: bytes) -> None:
    assert_envelope(post(server, content), 400)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [""]}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"prompt": [True, False]}, "prompt"),
        ({"prompt": [1.5]}, "prompt"),
        ({"prompt": {"text": "a"}}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [10**9]}, "prompt"),
        ({"prompt": [10**40]}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"n": "2"}, "n"),
        ({"n": True}, "n"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": "16"}, "max_tokens"),
        ({"max_tokens": 10**400}, "max_tokens"),
        ({"max_tokens": 10_000}, "max_tokens"),
        ({"min_tokens": 17}, "min_tokens"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": [1]}, "temperature"),
        ({"top_p": 1.1}, "top_p"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {}}, "stream_options"),
        ({"stream": True, "stream_options": {"granularity": "word"}}, "stream_options.granularity"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"stop": ""}, "stop"),
        ({"stop": "a" * 5000}, "stop"),
        ({"stop_token_ids": [10**6]}, "stop_token_ids"),
        ({"logprobs": -1}, "logprobs"),
        ({"logprobs": 21}, "logprobs"),
        ({"min_p": 1.1}, "min_p"),
        ({"presence_penalty": 2.1}, "presence_penalty"),
        ({"frequency_penalty": "0"}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"repetition_penalty": 1e-38}, "repetition_penalty"),
        ({"logit_bias": [1]}, "logit_bias"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"logit_bias": {"5": None}}, "logit_bias"),
        ({"logit_bias": {"5": 1, "05": 2}}, "logit_bias"),
        ({"logit_bias": {"99999": 1}}, "logit_bias"),
        ({"suffix": 5}, "suffix"),
        ({"suffix": "x" * 5000}, "suffix"),
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"best_of": 0}, "best_of"),
        ({"logprobs": True}, "logprobs"),
        ({"psd": {"threshold": 2}}, "psd.threshold"),
        ({"psd": {"policy": "best"}}, "psd.policy"),
        ({"psd": {"block_length": 0}}, "psd.block_length"),
        ({"psd": {"warp": 9}}, "psd.warp"),
        ({"psd": "fast"}, "psd"),
        ({"psd": {"__proto__": {}}}, "psd.__proto__"),
        ({"psd": {"constructor": 1}}, "psd.constructor"),
        ({"prompt": ["a"] * 128, "n": 128}, "prompt"),
        ({"model": 5}, "model"),
        ({"model": None}, "model"),
    ],
    ids=lambda value: json.dumps(value)[:40],
)
def test_a_wrong_field_is_a_400_that_names_it(server: ServerProcess, fields: dict[str, object], param: str) -> None:
    error = assert_envelope(server.complete(**fields), 400)
    assert error["param"] == param
    assert len(str(error["message"])) < 700


def test_a_prompt_beyond_the_context_is_a_400_with_the_numbers(server: ServerProcess) -> None:
    limit = server.client.get("/v1/models/tiny").json()["max_model_len"]
    for prompt in ([9] * limit, "7 " * limit, "x" * 2_000_000):
        error = assert_envelope(server.complete(prompt=prompt), 400)
        assert error["code"] == "context_length_exceeded"
        assert str(limit) in str(error["message"])


def test_an_unknown_model_is_a_404_that_names_the_served_one(server: ServerProcess) -> None:
    for response in (server.complete(model="gpt-5"), server.client.get("/v1/models/..%2F..%2Fetc")):
        error = assert_envelope(response, 404)
        assert (error["code"], error["param"]) == ("model_not_found", "model")
        assert "tiny" in str(error["message"])


def test_a_large_body_is_refused_while_it_is_read(server: ServerProcess) -> None:
    body = b'{"model":"tiny","prompt":"' + b"a" * 5_000_000 + b'"}'
    assert_envelope(post(server, body), 413)

    def chunks() -> Iterator[bytes]:
        for start in range(0, len(body), 65_536):
            yield body[start : start + 65_536]

    assert_envelope(
        server.client.post(URL, content=chunks(), headers={"content-type": "application/json"}),
        413,
    )


def test_other_content_types_and_encodings_are_400s(server: ServerProcess) -> None:
    body = json.dumps(BASE).encode()
    assert_envelope(post(server, body, content_type="text/plain"), 400)
    assert_envelope(post(server, gzip.compress(body), content_encoding="gzip"), 400)


@pytest.mark.parametrize(
    ("method", "path", "status", "allowed"),
    [
        ("GET", "/nope", 404, None),
        ("GET", "/docs/nope", 404, None),
        ("POST", "/v1/nope", 404, None),
        ("GET", "/v1/completions", 405, "POST"),
        ("OPTIONS", "/v1/chat/completions", 405, "POST"),
        ("DELETE", "/v1/models", 405, "GET, HEAD"),
        ("POST", "/health", 405, "GET, HEAD"),
        ("PATCH", "/docs", 405, "GET, HEAD"),
        ("BREW", "/health", 405, "GET, HEAD"),
    ],
)
def test_unknown_paths_and_methods_have_the_envelope(
    server: ServerProcess, method: str, path: str, status: int, allowed: str | None
) -> None:
    response = server.client.request(method, path)
    assert_envelope(response, status)
    assert response.headers.get("allow") == allowed


def test_the_kind_of_a_tool_choice_is_checked(server: ServerProcess) -> None:
    assert assert_envelope(server.chat(tool_choice=5), 400)["param"] == "tool_choice"


def test_prototype_like_keys_and_forged_lines_are_only_text(server: ServerProcess) -> None:
    forged = "x\n2026-01-01 00:00:00 ERROR forged \x1b[31m"
    assert server.complete(max_tokens=1, **{"__proto__": {"model": "b"}, "constructor": 1}).status_code == 200
    assert server.complete(model=forged).status_code == 404
    assert server.complete(max_tokens=1, user=forged).status_code == 200
    assert server.client.get(f"/v1/models/{forged.encode().hex()}", headers={"user-agent": "a b"}).status_code == 404
    assert "\x1b[31m" not in server.log
    assert not any(line.startswith("2026-01-01") for line in server.log.splitlines())


def test_text_full_of_private_use_characters_is_answered(server: ServerProcess) -> None:
    content = "".join(map(chr, range(0xE000, 0xF8FF))) + "<|eot|>"
    for path, fields in (("/v1/chat/completions", {"model": "tiny", "max_tokens": 1}), ("/tokenize", {})):
        response = server.client.post(path, json={"messages": [{"role": "user", "content": content}], **fields})
        assert response.status_code in (200, 400), response.text


def test_a_decoder_setting_outside_psd_is_a_400_that_says_where_it_belongs(server: ServerProcess) -> None:
    for name in ("draft_depth", "policy", "cache"):
        error = server.complete(**{name: 3}).json()["error"]
        assert (error["param"], error["code"]) == (name, "unknown_field")
        assert '"psd"' in error["message"]


def test_an_unknown_setting_is_named_but_not_at_any_length(server: ServerProcess) -> None:
    assert server.complete(psd={"a b": 1}).json()["error"]["param"] == "psd.a b"
    response = server.complete(psd={"y" * 100_000: 1})
    assert response.status_code == 400
    assert len(response.content) < 1000


def test_tokenize_refuses_what_cannot_fit_the_context_and_what_chat_refuses(server: ServerProcess) -> None:
    response = server.client.post("/tokenize", json={"prompt": "! " * 500_000, "return_token_strs": True})
    assert response.json()["error"]["code"] == "context_length_exceeded"
    response = server.client.post("/tokenize", json={"messages": [{"role": "tool", "content": "x"}]})
    assert response.json()["error"]["param"] == "messages.0.role"


def test_the_server_goes_on(server: ServerProcess) -> None:
    assert server.complete(max_tokens=1).status_code == 200
    assert server.metric('psd_request_errors_total{code="internal_error"}') == 0
    assert "Traceback" not in server.log
