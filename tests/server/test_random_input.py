"""Bodies, paths and conversations that nobody thought of: made at random, and answered with anything but a 5xx."""

from __future__ import annotations

import json
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.server.process import ServerProcess

JSON_TYPE = {"content-type": "application/json"}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
FIELDS = ("prompt", "n", "stop", "seed", "temperature", "logprobs", "stream_options", "psd", "stop_token_ids", "top_k")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(fields=st.dictionaries(st.sampled_from(FIELDS), JSON, min_size=1))
def test_no_body_makes_a_5xx(server: ServerProcess, fields: dict[str, object]) -> None:
    body = {"model": "tiny", "prompt": "a", "max_tokens": 1} | fields
    response = server.client.post("/v1/completions", content=json.dumps(body).encode(), headers=JSON_TYPE)
    assert response.status_code in (200, 400)


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
    path = "/v1/chat/completions" if is_chat else "/v1/completions"
    response = server.client.post(path, content=body, headers=JSON_TYPE)
    assert 200 <= response.status_code < 500, response.text


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(path=st.text(st.characters(min_codepoint=33, max_codepoint=0x2FF), max_size=12), value=st.binary(max_size=20))
def test_no_path_and_no_header_makes_a_5xx(server: ServerProcess, path: str, value: bytes) -> None:
    value = bytes(byte for byte in value if byte >= 32 and byte != 127).strip()
    for name in (b"x-request-id", b"authorization", b"content-type", b"accept", b"origin"):
        response = server.client.get(f"{server.url}/v1/models/{quote(path)}", headers=[(name, value)])
        assert response.status_code < 500
        assert response.headers["x-request-id"]


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
    response = reciter.client.post(path, content=json.dumps(body).encode(), headers=JSON_TYPE)
    assert response.status_code in (200, 400)


def test_none_of_it_was_an_internal_error(server: ServerProcess) -> None:
    assert server.complete(max_tokens=1).status_code == 200
    assert server.metric('psd_request_errors_total{code="internal_error"}') == 0
    assert "Traceback" not in server.log
