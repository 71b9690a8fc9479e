"""The table of request fields in docs/api.md, made from what the code accepts.

`python -m server.fieldtable` prints it; with a file as argument, the part between the file's two marks is replaced.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from server.fields import Fields
from server.schema import ChatRequest, CompletionRequest
from server.unsupported import CHAT_NEUTRAL, COMPLETION_NEUTRAL, NO_EFFECT, Neutral

BEGIN: Final = "<!-- made by python -m server.fieldtable docs/api.md -->"
END: Final = "<!-- end of the table -->"
ABSENT: Final = "–"

OPENAI_COMPLETION: Final = tuple(
    "model prompt best_of echo frequency_penalty logit_bias logprobs max_tokens n presence_penalty seed stop stream "
    "stream_options suffix temperature top_p user".split()
)
OPENAI_CHAT: Final = tuple(
    "model messages audio frequency_penalty function_call functions logit_bias logprobs max_completion_tokens "
    "max_tokens metadata modalities moderation n parallel_tool_calls prediction presence_penalty prompt_cache_key "
    "prompt_cache_options prompt_cache_retention reasoning_effort response_format safety_identifier seed service_tier "
    "stop store stream stream_options temperature tool_choice tools top_logprobs top_p user verbosity "
    "web_search_options".split()
)
VLLM: Final = tuple(
    "add_generation_prompt add_special_tokens allowed_token_ids bad_words cache_salt chat_template "
    "chat_template_kwargs continue_final_message documents ec_transfer_params ignore_eos include_reasoning "
    "include_stop_str_in_output kv_transfer_params length_penalty logits_processors logprob_token_ids media_io_kwargs "
    "min_p min_tokens mm_payload mm_processor_kwargs priority prompt_embeds prompt_logprobs repetition_detection "
    "repetition_penalty request_id response_format return_mm_kwargs return_prompt_text return_token_ids "
    "return_token_offsets return_tokens_as_token_ids return_weight_versions routed_experts_prompt_start session_id "
    "skip_special_tokens spaces_between_special_tokens stop_token_ids stream_interval structured_outputs "
    "thinking_token_budget top_k truncate_prompt_tokens truncation_side use_beam_search vllm_xargs watermarking".split()
)
_NOTES: Final[Mapping[str, str]] = {
    "model": "one of the served names, else 404",
    "temperature": "default 0",
    "tools": "where the chat template knows tools",
    "tool_choice": '`"auto"` or `"none"`; a call cannot be forced',
    "parallel_tool_calls": "`false` together with tools is refused",
    "response_format": "constrained text: see above",
    "top_logprobs": "0 to 20",
    "logprobs": "on completions 0 to 20; with `echo` the prompt is scored too",
    "best_of": "by mean log-probability; not with `stream`",
    "suffix": "infilling; refused by models that do not see what follows",
    "logit_bias": "part of the model's distribution: see above",
    "max_tokens": "default 16, 0 generates nothing; on chats the rest of the context, at most 256",
    "max_completion_tokens": "wins over `max_tokens`",
    "stream_options": "`include_usage`, `continuous_usage_stats`, `granularity`",
    "chat_template_kwargs": "variables that the template reads; others are refused",
    "continue_final_message": "where the template shows the final message as it is",
    "psd": "decoder settings: see the README",
    "cache_salt": "requests of different salts share no cached beginning of a prompt",
    "diffusing": "with `stream`: chunks that show the canvas",
    "add_special_tokens": "the prompt's beginning is the tokenizer's, or the chat template's",
}
Row = tuple[str, str, str, str]


def rows(names: Iterable[str]) -> list[Row]:
    """Field, what each endpoint does with it, and a note."""
    return [
        (
            name,
            status(name, CompletionRequest, COMPLETION_NEUTRAL),
            status(name, ChatRequest, CHAT_NEUTRAL),
            NO_EFFECT.get(name, _NOTES.get(name, "")),
        )
        for name in sorted(set(names))
    ]


def status(name: str, model: type[Fields], neutral: Mapping[str, Neutral]) -> str:
    """What an endpoint does with a field: one of the words that the page explains."""
    if name in NO_EFFECT:
        return "no effect"
    if name in neutral:
        values = neutral[name]
        return "only " + ", ".join(f"`{json.dumps(value)}`" for value in values) if values else "refused"
    return "supported" if name in model.model_fields else ABSENT


def table() -> str:
    """All groups as Markdown."""
    openai = {*OPENAI_COMPLETION, *OPENAI_CHAT}
    known = openai.union(VLLM)
    own = {*CompletionRequest.model_fields, *ChatRequest.model_fields}.difference(known)
    other = {*COMPLETION_NEUTRAL, *CHAT_NEUTRAL}.difference(known, own)
    groups = {
        "OpenAI's fields": openai,
        "vLLM's extensions": set(VLLM) - openai,
        "This server's own": own,
        "Seen from clients of other servers": other,
    }
    return "\n".join(_group(title, rows(names)) for title, names in groups.items() if names)


def replace_table(page: str) -> str:
    """The page with the table between its marks made anew."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError("the page lacks the marks between which the table stands")
    return f"{before}{BEGIN}\n\n{table()}\n{END}{after}"


def _group(title: str, entries: Iterable[Row]) -> str:
    lines = [f"| {title} | `/v1/completions` | `/v1/chat/completions` | |", "|---|---|---|---|"]
    lines += [f"| `{name}` | {completion} | {chat} | {note} |" for name, completion, chat, note in entries]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Print, or write into the file that is named."""
    if len(sys.argv) > 1:
        path = Path(sys.argv[1])
        path.write_text(replace_table(path.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        sys.stdout.write(table())


if __name__ == "__main__":
    main()
