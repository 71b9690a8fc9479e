"""The litellm SDK: text and chat, whole, streamed and asynchronous, tools, and its error classes.

usage: with_litellm.py URL RECITER_URL
"""

import asyncio
import sys

import litellm

url, reciter = (f"{address}/v1" for address in sys.argv[1:3])
PROMPT = "What is 7 + 5?"
MESSAGES = [{"role": "user", "content": PROMPT}]

text = {"model": "text-completion-openai/tiny", "api_base": url, "api_key": "none", "prompt": PROMPT, "max_tokens": 24}
whole = litellm.text_completion(**text).choices[0].text
parts = [chunk.choices[0].text or "" for chunk in litellm.text_completion(**text, stream=True)]
assert "".join(parts) == whole, (parts, whole)

for provider in ("hosted_vllm", "openai"):
    chat = {"model": f"{provider}/tiny", "api_base": url, "api_key": "none", "messages": MESSAGES, "max_tokens": 24}
    answer = litellm.completion(**chat)
    content = answer.choices[0].message.content
    assert answer.usage.completion_tokens > 0
    chunks = list(litellm.completion(**chat, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == content
    assert chunks[-1].usage.completion_tokens == answer.usage.completion_tokens
assert asyncio.run(litellm.acompletion(**chat)).choices[0].message.content == content


def refusal(kind: type[Exception], **fields: object) -> str:
    """What litellm says of a request that must fail in one way."""
    try:
        litellm.completion(**chat | fields, num_retries=0)
    except kind as error:
        return str(error)
    raise AssertionError(f"{fields} was answered")


assert "tiny" in refusal(litellm.NotFoundError, model="openai/other")
assert "context" in refusal(litellm.BadRequestError, max_tokens=100_000)

WEATHER = {
    "type": "function",
    "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
called = litellm.completion(
    model="hosted_vllm/tiny",
    api_base=reciter,
    messages=[{"role": "user", "content": "Weather in Lisbon?"}],
    tools=[WEATHER],
    max_tokens=184,
)
(call,) = called.choices[0].message.tool_calls
assert (call.function.name, call.function.arguments) == ("get_weather", '{"city": "Lisbon"}')
assert called.choices[0].finish_reason == "tool_calls"
