"""LlamaIndex's OpenAILike, as a completion and as a chat model.

usage: with_llamaindex.py URL
"""

import asyncio
import sys

from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike

url = f"{sys.argv[1]}/v1"
PROMPT = "What is 7 + 5?"
common = {"model": "tiny", "api_base": url, "api_key": "none", "temperature": 0.0, "max_retries": 0}

text_model = OpenAILike(is_chat_model=False, max_tokens=24, **common)
whole = text_model.complete(PROMPT)
assert "".join(part.delta for part in text_model.stream_complete(PROMPT)) == whole.text

chat_model = OpenAILike(is_chat_model=True, max_tokens=24, **common)
messages = [ChatMessage(role="system", content="Be brief."), ChatMessage(role="user", content=PROMPT)]
answer = chat_model.chat(messages)
assert "".join(part.delta or "" for part in chat_model.stream_chat(messages)) == answer.message.content
assert asyncio.run(chat_model.achat(messages)).message.content == answer.message.content
assert answer.raw.usage.completion_tokens > 0
