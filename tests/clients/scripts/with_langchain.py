"""langchain-openai: completion and chat models, whole, streamed, batched and asynchronous, and bound tools.

usage: with_langchain.py URL RECITER_URL
"""

import asyncio
import sys

from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI, OpenAI

url, reciter = (f"{address}/v1" for address in sys.argv[1:3])
PROMPT = "What is 7 + 5?"

text_model = OpenAI(base_url=url, api_key="none", model="tiny", max_tokens=24, temperature=0, max_retries=0)
whole = text_model.invoke(PROMPT)
assert "".join(text_model.stream(PROMPT)) == whole
assert text_model.batch([PROMPT, PROMPT]) == [whole, whole]
assert text_model.generate([PROMPT], stop=["\n"]).llm_output["token_usage"]["completion_tokens"] > 0

chat_model = ChatOpenAI(base_url=url, api_key="none", model="tiny", max_tokens=24, temperature=0, max_retries=0)
messages = [SystemMessage("Be brief."), HumanMessage(PROMPT), AIMessage("12"), HumanMessage(PROMPT)]
answer = chat_model.invoke(messages)
assert answer.usage_metadata["output_tokens"] > 0
assert answer.response_metadata["finish_reason"] in ("stop", "length")
chunks = list(chat_model.stream(messages))
assert "".join(chunk.content for chunk in chunks) == answer.content
assert asyncio.run(chat_model.ainvoke(messages)).content == answer.content
scored = chat_model.bind(logprobs=True).invoke(messages)
assert scored.response_metadata["logprobs"]["content"]


def get_weather(city: str) -> str:
    """The weather of a city."""
    return f"21 °C in {city}"


WEATHER = {
    "type": "function",
    "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
with_tools = ChatOpenAI(base_url=reciter, api_key="none", model="tiny", max_tokens=184, max_retries=0).bind_tools(
    [WEATHER]
)
called = with_tools.invoke("Weather in Lisbon?")
assert [(call["name"], call["args"]) for call in called.tool_calls] == [("get_weather", {"city": "Lisbon"})], called
assert called.response_metadata["finish_reason"] == "tool_calls"
streamed = None
for chunk in with_tools.stream("Weather in Lisbon and Évora?"):
    streamed = chunk if streamed is None else streamed + chunk
assert streamed is not None
assert [call["args"] for call in streamed.tool_calls] == [{"city": "Lisbon"}, {"city": "Évora"}], streamed
