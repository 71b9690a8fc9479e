"""Tools over the wire: shown to the model, called, streamed; and what a template does not know is refused."""

from __future__ import annotations

import json

import pytest

from tests.server.process import ServerProcess
from tests.server.reciter import ASK_LANGUAGES, ASK_TWICE, ASK_WEATHER, LANGUAGES, RESULT, WEATHER
from tests.server.sse import Chunk, joined_text, read_stream

PATH = "/v1/chat/completions"
LISBON = ("get_weather", {"city": "Lisbon"})
EVORA = ("get_weather", {"city": "Évora"})


def called(calls: list[Chunk]) -> list[tuple[str, object]]:
    return [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls]


def test_a_call_is_taken_out_of_the_text(reciter: ServerProcess) -> None:
    (choice,) = reciter.chat(messages=ASK_WEATHER, tools=[WEATHER], max_tokens=184).json()["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Let me look."
    assert called(choice["message"]["tool_calls"]) == [LISBON]
    assert choice["message"]["tool_calls"][0]["type"] == "function"


@pytest.mark.parametrize("granularity", ["block", "frontier"])
@pytest.mark.parametrize("block_length", [8, 32])
def test_streamed_calls_are_those_of_the_whole_answer(
    reciter: ServerProcess, granularity: str, block_length: int
) -> None:
    body = {
        "model": "tiny",
        "messages": ASK_TWICE,
        "tools": [WEATHER],
        "max_tokens": 184,
        "psd": {"block_length": block_length},
        "stream_options": {"granularity": granularity},
    }
    chunks = read_stream(reciter.client, PATH, body)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    calls = [call for delta in deltas for call in delta.get("tool_calls", [])]
    assert [call["index"] for call in calls] == [0, 1]
    assert len({call["id"] for call in calls}) == 2
    assert called(calls) == [LISBON, EVORA]
    assert joined_text(chunks) == ""
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks][-1] == "tool_calls"
    whole = reciter.chat(messages=ASK_TWICE, tools=[WEATHER], max_tokens=184).json()["choices"][0]["message"]
    assert whole["content"] is None
    assert called(whole["tool_calls"]) == called(calls)


def test_an_answer_cut_within_a_call_is_text_and_says_length(reciter: ServerProcess) -> None:
    body = {"model": "tiny", "messages": ASK_WEATHER, "tools": [WEATHER], "max_tokens": 40}
    whole = reciter.client.post(PATH, json=body).json()["choices"][0]
    chunks = read_stream(reciter.client, PATH, body)
    assert whole["finish_reason"] == chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert whole["message"]["content"].startswith("Let me look.\n<tool_call>")
    assert joined_text(chunks) == whole["message"]["content"]
    assert "tool_calls" not in whole["message"]


def test_a_result_is_shown_to_the_model(reciter: ServerProcess) -> None:
    (choice,) = reciter.chat(messages=RESULT, tools=[WEATHER], max_tokens=64).json()["choices"]
    assert choice["message"]["content"] == "It is 21 °C in Lisbon."
    assert choice["finish_reason"] == "stop"


def test_the_forms_before_tools_are_the_same_prompt(reciter: ServerProcess) -> None:
    old = [
        RESULT[0],
        {"role": "assistant", "function_call": RESULT[1]["tool_calls"][0]["function"]},
        {"role": "function", "name": "get_weather", "content": "21 °C"},
    ]
    new, given = (
        reciter.client.post("/tokenize", json={"messages": messages, "tools": [WEATHER]}).json()["tokens"]
        for messages in (RESULT, old)
    )
    assert new == given


def test_without_choice_the_model_sees_no_tools(reciter: ServerProcess) -> None:
    said: tuple[dict[str, object], ...] = (
        {},
        {"tools": [WEATHER]},
        {"tools": [WEATHER], "tool_choice": "none"},
        {"tools": []},
    )
    counts = [
        reciter.client.post("/tokenize", json={"messages": ASK_WEATHER} | fields).json()["count"] for fields in said
    ]
    assert counts[1] > counts[0] == counts[2] == counts[3]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "get_weather"}}}, "tool_choice"),
        ({"tools": [WEATHER], "parallel_tool_calls": False}, "parallel_tool_calls"),
        ({"tools": [{"type": "function", "function": {"name": "f", "strict": True}}]}, "tools.0.function.strict"),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools.0.function.name"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": 1}}]}, "tools.0.function.parameters"),
        ({"tools": "all"}, "tools"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[1]"}}]}]},
            "messages.0.tool_calls.0.function.arguments",
        ),
        (
            {"messages": [{"role": "user", "content": "a", "tool_calls": [{"function": {"name": "f"}}]}]},
            "messages.0.tool_calls",
        ),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"nope": 1}}, "chat_template_kwargs"),
        ({"continue_final_message": True}, "continue_final_message"),
    ],
    ids=lambda value: json.dumps(value)[:50],
)
def test_what_cannot_be_honoured_is_a_400_by_name(
    reciter: ServerProcess, fields: dict[str, object], param: str
) -> None:
    response = reciter.chat(**fields)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


def test_a_variable_that_the_template_reads_reaches_it(reciter: ServerProcess) -> None:
    plain, polite = (
        reciter.client.post("/tokenize", json={"messages": ASK_WEATHER} | fields).json()["tokens"]
        for fields in ({}, {"chat_template_kwargs": {"polite": True}})
    )
    assert polite[: len(plain)] == plain
    assert reciter.client.post("/detokenize", json={"tokens": polite[len(plain) :]}).json()["prompt"] == "Dear!"


def test_a_final_message_is_continued(reciter: ServerProcess) -> None:
    begun = LANGUAGES[:20]
    messages = [*ASK_LANGUAGES, {"role": "assistant", "content": begun}]
    answer = reciter.chat(messages=messages, continue_final_message=True, max_tokens=128).json()
    assert begun + answer["choices"][0]["message"]["content"] == LANGUAGES


def test_a_prompt_may_end_without_the_assistants_turn(reciter: ServerProcess) -> None:
    counts = [
        reciter.client.post("/tokenize", json={"messages": ASK_WEATHER} | fields).json()["count"]
        for fields in ({}, {"add_generation_prompt": True}, {"add_generation_prompt": False})
    ]
    assert counts[0] == counts[1] == counts[2] + 1
