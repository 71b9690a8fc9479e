"""Whatever a client sends, it gets a 4xx in OpenAI's envelope, and the server goes on."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from urllib.parse import quote

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

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


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
FIELDS = ("prompt", "n", "stop", "seed", "temperature", "logprobs", "stream_options", "psd", "stop_token_ids", "top_k")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(fields=st.dictionaries(st.sampled_from(FIELDS), JSON, min_size=1))
def test_no_body_makes_a_5xx(server: ServerProcess, fields: dict[str, object]) -> None:
    body = BASE | {"max_tokens": 1} | fields
    assert post(server, json.dumps(body).encode()).status_code in (200, 400)


VALID = (
    b'{"model":"tiny","prompt":["a","b"],"max_tokens":1,"stop":["x"],"psd":{"policy":"topk","k":2}}',
    b'{"model":"tiny","messages":[{"role":"user","content":[{"type":"text","text":"a"}]}],"max_tokens":1}',
)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    body=st.sampled_from(VALID),
    edits=st.lists(st.tuples(st.integers(0, 200), st.binary(max_size=3), st.integers(0, 6)), min_size=1, max_size=4),
    is_chat=st.booleans(),
)
def test_no_damage_to_a_body_makes_a_5xx(
    server: ServerProcess, body: bytes, edits: list[tuple[int, bytes, int]], is_chat: bool
) -> None:
    """Bytes are put in and cut out anywhere."""
    for start, inserted, num_removed in edits:
        body = body[:start] + inserted + body[start + num_removed :]
    path = "/v1/chat/completions" if is_chat else URL
    response = server.client.post(path, content=body, headers={"content-type": "application/json"})
    assert 200 <= response.status_code < 500, response.text


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(path=st.text(st.characters(min_codepoint=33, max_codepoint=0x2FF), max_size=12), value=st.binary(max_size=20))
def test_no_path_and_no_header_makes_a_5xx(server: ServerProcess, path: str, value: bytes) -> None:
    value = bytes(byte for byte in value if byte >= 32 and byte != 127).strip()
    for name in (b"x-request-id", b"authorization", b"content-type", b"accept", b"origin"):
        response = server.client.get(f"{server.url}/v1/models/{quote(path)}", headers=[(name, value)])
        assert response.status_code < 500
        assert response.headers["x-request-id"]


def test_prototype_like_keys_and_forged_lines_are_only_text(server: ServerProcess) -> None:
    forged = "x\n2026-01-01 00:00:00 ERROR forged \x1b[31m"
    assert server.complete(max_tokens=1, **{"__proto__": {"model": "b"}, "constructor": 1}).status_code == 200
    assert server.complete(model=forged).status_code == 404
    assert server.complete(max_tokens=1, user=forged).status_code == 200
    assert server.client.get(f"/v1/models/{forged.encode().hex()}", headers={"user-agent": "a b"}).status_code == 404
    assert "\x1b[31m" not in server.log
    assert not any(line.startswith("2026-01-01") for line in server.log.splitlines())


CHAT_FIELDS = (
    "messages", "tools", "tool_choice", "parallel_tool_calls", "chat_template_kwargs", "continue_final_message",
    "add_generation_prompt", "logprobs", "top_logprobs", "max_completion_tokens", "response_format", "stop", "n",
)  # fmt: skip  # a table
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "developer", "user", "assistant", "tool", "function", "x"])},
        optional={"content": JSON | st.text(max_size=9), "name": JSON, "tool_calls": JSON, "tool_call_id": JSON},
    ),
    max_size=3,
)
TOOLS = st.lists(
    st.fixed_dictionaries(
        {"type": st.just("function")},
        optional={"function": st.fixed_dictionaries({"name": st.text(max_size=5)}, optional={"parameters": JSON})},
    ),
    max_size=2,
)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/tokenize"])
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    messages=MESSAGES,
    tools=st.none() | TOOLS,
    fields=st.dictionaries(st.sampled_from(CHAT_FIELDS), JSON, max_size=3),
)
def test_no_conversation_makes_a_5xx(
    reciter: ServerProcess, path: str, messages: object, tools: object, fields: dict[str, object]
) -> None:
    body = {"model": "tiny", "max_tokens": 1, "messages": messages, "tools": tools} | fields
    response = reciter.client.post(
        path, content=json.dumps(body).encode(), headers={"content-type": "application/json"}
    )
    assert response.status_code in (200, 400)


def test_the_server_goes_on(server: ServerProcess) -> None:
    assert server.complete(max_tokens=1).status_code == 200
    assert server.metric('psd_request_errors_total{code="internal_error"}') == 0
    assert "Traceback" not in server.log


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
