"""openai-python over the whole surface that it shares with this server, synchronous and asynchronous."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import cast

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam
from openai.types.chat.chat_completion import Choice

from tests.server.process import ServerProcess
from tests.server.reciter import LANGUAGES, WEATHER

PROMPT = "What is 7 + 5?"
MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": PROMPT}]
TOOLS = [cast("ChatCompletionToolParam", WEATHER)]


def connect(server: ServerProcess) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


@pytest.fixture
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with connect(server) as connected:
        yield connected


@pytest.fixture
def reciting(reciter: ServerProcess) -> Iterator[openai.OpenAI]:
    with connect(reciter) as connected:
        yield connected


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "psd-server"
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("other")
    assert caught.value.code == "model_not_found"


@pytest.mark.parametrize("prompt", [PROMPT, [PROMPT, "Hello"], [9, 10, 11], [[9, 10], [11, 12, 13]]])
def test_every_form_of_prompt(client: openai.OpenAI, prompt: object) -> None:
    answer = client.completions.create(model="tiny", prompt=prompt, max_tokens=6, n=2)  # type: ignore[call-overload]  # every form of prompt
    several = isinstance(prompt, list) and not isinstance(prompt[0], int)
    assert [choice.index for choice in answer.choices] == list(range(4 if several else 2))


def test_completion_options(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="tiny", prompt=PROMPT, max_tokens=8, logprobs=1, stop=["\n", "zz"], seed=3, temperature=0, top_p=1.0,
        presence_penalty=0, frequency_penalty=0, logit_bias={}, best_of=1, user="someone", suffix=None,
    )  # fmt: skip  # one option and its value per place
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert logprobs.token_logprobs is not None
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) > 0
    echoed = client.completions.create(model="tiny", prompt=PROMPT, max_tokens=8, echo=True)
    assert echoed.choices[0].text.startswith(PROMPT)


def test_sampling_is_reproduced_by_its_seed(client: openai.OpenAI) -> None:
    answers = [
        client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=20, temperature=1.2, seed=5, n=2)
        for _ in range(2)
    ]
    first, second = ([choice.message.content for choice in answer.choices] for answer in answers)
    assert first == second


def test_chat_logprobs(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny", messages=MESSAGES, max_tokens=5, logprobs=True, top_logprobs=1, extra_body={"ignore_eos": True}
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert [len(entry.top_logprobs) for entry in logprobs.content] == [1] * 5


def test_raw_and_streamed_responses(client: openai.OpenAI) -> None:
    raw = client.completions.with_raw_response.create(model="tiny", prompt=PROMPT, max_tokens=4)
    assert raw.headers["x-request-id"]
    assert raw.parse().choices[0].finish_reason in ("stop", "length")
    with client.chat.completions.with_streaming_response.create(
        model="tiny", messages=MESSAGES, max_tokens=4, stream=True
    ) as response:
        assert list(response.iter_lines())[-2:] == ["data: [DONE]", ""]


def test_the_streaming_helper_sees_the_same_text(reciting: openai.OpenAI) -> None:
    with reciting.chat.completions.stream(
        model="tiny", messages=[{"role": "user", "content": "Greet everyone."}], max_completion_tokens=184
    ) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    assert "".join(deltas) == final.choices[0].message.content == LANGUAGES


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_tool_is_called_and_its_result_is_used(reciting: openai.OpenAI, is_streamed: bool) -> None:
    asked: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Weather in Lisbon?"}]
    if is_streamed:
        with reciting.chat.completions.stream(model="tiny", messages=asked, tools=TOOLS, max_tokens=184) as stream:
            choice: Choice = stream.get_final_completion().choices[0]
    else:
        choice = reciting.chat.completions.create(model="tiny", messages=asked, tools=TOOLS, max_tokens=184).choices[0]
    reason, message = choice.finish_reason, choice.message
    assert reason == "tool_calls"
    assert message.content == "Let me look."
    assert message.tool_calls is not None
    (call,) = message.tool_calls
    assert call.type == "function"
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Lisbon"})
    past = message.model_dump(exclude_none=True, include={"role": True, "tool_calls": True})
    answer = reciting.chat.completions.create(
        model="tiny",
        messages=[*asked, past, {"role": "tool", "tool_call_id": call.id, "content": "21 °C"}],  # type: ignore[list-item]  # a received message, sent back
        tools=TOOLS,
        max_tokens=64,
    )
    assert answer.choices[0].message.content == "It is 21 °C in Lisbon."
    assert answer.choices[0].finish_reason == "stop"


@pytest.mark.parametrize(
    "fields",
    [
        {"tool_choice": "required"},
        {"tool_choice": {"type": "function", "function": {"name": "get_weather"}}},
        {"parallel_tool_calls": False},
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}},
        {"reasoning_effort": "high"},
        {"prediction": {"type": "content", "content": "x"}},
        {"modalities": ["text", "audio"]},
        {"store": True},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_what_cannot_be_honoured_is_a_bad_request(reciting: openai.OpenAI, fields: dict[str, object]) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        reciting.chat.completions.create(model="tiny", messages=MESSAGES, tools=TOOLS, **fields)  # type: ignore[call-overload]  # wrong on purpose
    assert caught.value.param == next(iter(fields))
    assert caught.value.code == "unsupported_parameter"


async def test_asynchronous_calls(server: ServerProcess, reciter: ServerProcess) -> None:
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        whole = await client.completions.create(model="tiny", prompt=PROMPT, max_tokens=24)
        stream = await client.completions.create(model="tiny", prompt=PROMPT, max_tokens=24, stream=True)
        assert "".join([chunk.choices[0].text async for chunk in stream]) == whole.choices[0].text
        with pytest.raises(openai.BadRequestError):
            await client.completions.create(model="tiny", prompt="")
        assert [model.id async for model in client.models.list()] == ["tiny"]
    async with openai.AsyncOpenAI(base_url=f"{reciter.url}/v1", api_key="none", max_retries=0) as client:
        asked: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Weather in Lisbon and Évora?"}]
        async with client.chat.completions.stream(model="tiny", messages=asked, tools=TOOLS, max_tokens=184) as events:
            message = (await events.get_final_completion()).choices[0].message
        assert not message.content
        assert message.tool_calls is not None
        assert [call.function.arguments for call in message.tool_calls] == ['{"city": "Lisbon"}', '{"city": "Évora"}']
