"""Fields that clients send and this server does not implement.

Their neutral values are accepted, because they ask for nothing; any other value is refused with the field's name,
because dropping it in silence would change the answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from server.body import JsonObject
from server.errors import unsupported

Neutral = tuple[object, ...]

_COMMON: Final[Mapping[str, Neutral]] = {
    "length_penalty": (1,),
    "typical_p": (1,),
    "use_beam_search": (False,),
    "bad_words": ([],),
    "allowed_token_ids": ([],),
    "logits_processors": ([],),
    "prompt_logprobs": (False,),
    "truncate_prompt_tokens": (),
    "prompt_embeds": (),
    "response_format": ({"type": "text"},),
    "structured_outputs": ({},),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "json_schema": (),
    "regex": (),
    "ebnf": (),
    "lora_path": (),
    "vllm_xargs": ({},),
    "custom_params": ({},),
    "return_tokens_as_token_ids": (False,),
}

# What other servers offer and this one does not: OpenAI's platform, and vLLM's extensions.
_ELSEWHERE: Final[Mapping[str, Neutral]] = {
    "store": (False,),
    "service_tier": ("auto", "default"),
    "moderation": (),
    "priority": (0,),
    "stream_interval": (1,),
    "logprob_token_ids": ([],),
    "thinking_token_budget": (),
    "repetition_detection": (),
    "watermarking": (False,),
    "return_token_offsets": (False,),
    "return_prompt_text": (False,),
    "return_weight_versions": (False,),
    "routed_experts_prompt_start": (0,),
    "return_mm_kwargs": (False,),
    "mm_payload": ("tensors",),
    "kv_transfer_params": ({},),
    "ec_transfer_params": ({},),
}

COMPLETION_NEUTRAL: Final[Mapping[str, Neutral]] = {
    **_COMMON,
    **_ELSEWHERE,
    "add_special_tokens": (True,),
}

CHAT_NEUTRAL: Final[Mapping[str, Neutral]] = {
    **_COMMON,
    **_ELSEWHERE,
    "reasoning_effort": ("none",),
    "verbosity": ("medium",),
    "include_reasoning": (True,),
    "media_io_kwargs": ({},),
    "mm_processor_kwargs": ({},),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
    "echo": (False,),
    "add_special_tokens": (False,),
    "chat_template": (),
    "documents": ([],),
}

# Accepted with any value and left alone, each for a reason: they ask for nothing that an answer could show.
NO_EFFECT: Final[Mapping[str, str]] = {
    "user": "names the end user; nothing is kept per user",
    "metadata": "labels of stored answers; none is stored",
    "safety_identifier": "names the end user; nothing is kept per user",
    "prompt_cache_key": "a hint to a cache, which finds alike beginnings by itself",
    "prompt_cache_options": "a hint to a cache, which finds alike beginnings by itself",
    "prompt_cache_retention": "a hint to a cache, which keeps what it has room for",
    "request_id": "requests are named by the header X-Request-Id",
    "session_id": "a hint to routers in front",
    "spaces_between_special_tokens": "no spaces are added in any case",
    "truncation_side": "prompts are never truncated",
}


def refuse_unsupported(body: JsonObject, neutral: Mapping[str, Neutral]) -> None:
    """ApiError 400 naming the first field whose value would have to be dropped. null is always neutral."""
    for field, values in neutral.items():
        value = body.get(field)
        if value is not None and not any(_equals(value, accepted) for accepted in values):
            raise unsupported(field, f"{field} is not supported{_accepted(values)}")


def _equals(value: object, accepted: object) -> bool:
    """Equal and of the same kind: true is not 1, but 1.0 is."""
    return value == accepted and isinstance(value, bool) == isinstance(accepted, bool)


def _accepted(values: Neutral) -> str:
    return f"; only {' or '.join(map(json.dumps, values))} is accepted" if values else ""
