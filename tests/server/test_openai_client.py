"""The official client, unmodified: sync and async, whole and streamed."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

from tests.server.process import ServerProcess

MESSAGES: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "What is 7 + 5?"}]


@pytest.fixture
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as connected:
        yield connected


def test_completions(client: openai.OpenAI) -> None:
    whole = client.completions.create(model="tiny", prompt="What is 7 + 5?", max_tokens=40)
    assert whole.usage is not None
    assert whole.usage.completion_tokens_details is not None
    chunks = list(
        client.completions.create(
            model="tiny",
            prompt="What is 7 + 5?",
            max_tokens=40,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert "".join(chunk.choices[0].text for chunk in chunks[:-1]) == whole.choices[0].text
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_chat(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=40)
    stream = client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=40, stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert text == whole.choices[0].message.content
    assert whole.model_extra is not None
    assert whole.model_extra["psd"]["forwards"] >= 1


async def test_async(server: ServerProcess) -> None:
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as client:
        whole = await client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=20)
        text = ""
        async for chunk in await client.chat.completions.create(
            model="tiny", messages=MESSAGES, max_tokens=20, stream=True
        ):
            text += chunk.choices[0].delta.content or ""
        assert text == whole.choices[0].message.content
        assert [model.id async for model in client.models.list()] == ["tiny"]


def test_errors_have_their_classes(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.completions.create(model="gpt-5", prompt="a")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as wrong:
        client.completions.create(model="tiny", prompt="a", max_tokens=100_000)
    assert wrong.value.code == "context_length_exceeded"
    assert wrong.value.request_id


def test_decoder_settings_travel_in_extra_body(client: openai.OpenAI) -> None:
    extra = {"psd": {"policy": "greedy", "draft_depth": 0}}
    answer = client.completions.create(model="tiny", prompt="a", max_tokens=4, extra_body=extra)
    assert answer.model_extra is not None
    assert answer.model_extra["psd"]["policy"] == "greedy"
