"""Fields that clients send and this server does not implement.

Their neutral values are accepted, because they ask for nothing; any other value is refused with the field's name,
because dropping it in silence would change the answer.
"""

from __future__ import annotations

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

COMPLETION_NEUTRAL: Final[Mapping[str, Neutral]] = _COMMON

CHAT_NEUTRAL: Final[Mapping[str, Neutral]] = {
    **_COMMON,
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
    "echo": (False,),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "add_special_tokens": (False,),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "documents": ([],),
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
    return f"; only {' or '.join(map(repr, values))} is accepted" if values else ""
