"""A parsed request body to engine requests, or an error: everything that can fail does so before the first byte.

Pure but for the ids and seeds it draws: no queue, no socket.
"""

from __future__ import annotations

import dataclasses
import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from psd_core.admission import check
from psd_core.config import DecoderConfig
from psd_core.errors import ConfigError, RequestError
from psd_core.request import SEED_HIGH, Request, SamplingParams
from server import toolcalls
from server.chat_template import ChatTemplate
from server.conversation import TOOL_ROLES, ChatMessage, ConversationFields, template_messages
from server.errors import ApiError, from_core, invalid, unsupported
from server.messages import ModelFacts
from server.schema import ChatRequest, CompletionRequest, GenerationFields, Prompt, PsdFields
from server.settings import RequestSettings
from server.tokenizer import Tokenizer
from server.tuning import COMPLETION_MAX_TOKENS, MAX_STOP_CHARS


@dataclass(frozen=True, slots=True)
class TextRules:
    """How a choice's tokens become text."""

    stops: tuple[str, ...]
    stop_ids: frozenset[int]
    min_tokens: int
    skip_special: bool
    include_stop: bool
    kept_ids: frozenset[int] = frozenset()  # special tokens that are text all the same


@dataclass(frozen=True, slots=True)
class Choice:
    """One sequence of a job. `echo` is the prompt's text if the answer must repeat it, else empty."""

    index: int
    request: Request
    echo: str


@dataclass(frozen=True, slots=True)
class Job:
    """One HTTP request, ready for the engine: nothing in it can be missing or out of range."""

    job_id: str
    model: str
    choices: tuple[Choice, ...]
    num_prompt_tokens: int  # each prompt counts once, however many choices it has
    decoder: DecoderConfig
    rules: TextRules
    wants_stream: bool
    wants_logprobs: bool
    num_top_logprobs: int  # 0 or 1: the chosen token, which is the most probable one at temperature 0
    wants_token_ids: bool
    wants_usage: bool
    wants_running_usage: bool
    parses_calls: bool = False  # tool calls are looked for in the text


@dataclass(frozen=True, slots=True)
class Admission:
    """What admission needs to know: built once the model is loaded."""

    tokenizer: Tokenizer
    template: ChatTemplate | None
    facts: ModelFacts
    settings: RequestSettings
    max_open: int  # sequences that may run or wait at once

    def completion(self, body: CompletionRequest) -> Job:
        """ApiError 400 if the request can never be served."""
        if body.echo and body.logprobs is not None:
            raise unsupported("echo", "echo together with logprobs is not supported")
        top = body.logprobs or 0
        self._check_top_logprobs("logprobs", top, body.temperature)
        prompts = [(self._prompt_ids(prompt), self._echo(prompt, body.echo)) for prompt in body.prompt]
        max_tokens = body.max_tokens or COMPLETION_MAX_TOKENS
        return self._job(body, prompts, max_tokens, "cmpl", body.logprobs is not None, top)

    def chat(self, body: ChatRequest) -> Job:
        """ApiError 400 if the request can never be served."""
        self._check_top_logprobs("top_logprobs", body.top_logprobs, body.temperature)
        ids = self.encode_messages(body, body.messages)
        max_tokens = body.max_completion_tokens or body.max_tokens or self._rest_of_context(body, len(ids))
        job = self._job(body, [(ids, "")], max_tokens, "chatcmpl", body.logprobs, body.top_logprobs)
        if not body.offered_tools:
            return job
        specials = self.tokenizer.special_texts
        kept_ids = frozenset(specials[marker] for marker in toolcalls.MARKERS if marker in specials)
        rules = dataclasses.replace(job.rules, kept_ids=kept_ids)
        return dataclasses.replace(job, rules=rules, parses_calls=True)

    def encode_messages(self, body: ConversationFields, messages: Sequence[ChatMessage]) -> list[int]:
        """Prompt ids of a conversation; ApiError 400 if there is no template or it refuses."""
        template = self.template
        if template is None:
            raise invalid("messages", "the model has no chat template; use /v1/completions or --chat-template")
        _check_known(template, body, messages)
        self.check_length("messages", sum(len(message.content or "") for message in messages))
        tools = [tool.shown for tool in body.offered_tools]
        self.check_length("tools", len(json.dumps(tools)))
        try:
            return template.encode(
                template_messages(messages),
                tools=tools,
                variables=body.chat_template_kwargs,
                add_generation_prompt=body.add_generation_prompt is not False,
                continue_final=body.continue_final_message,
            )
        except RequestError as error:
            raise from_core(error) from error

    def _job(
        self,
        body: GenerationFields,
        prompts: Sequence[tuple[list[int], str]],
        max_tokens: int,
        prefix: str,
        wants_logprobs: bool,
        num_top_logprobs: int,
    ) -> Job:
        self._check_counts(body, len(prompts))
        job_id = f"{prefix}-{secrets.token_hex(16)}"
        decoder = self._decoder(body.psd)
        rules = self._rules(body)
        options = body.stream_options
        seed = self._seed(body.seed)
        choices: list[Choice] = []
        try:
            for prompt_index, (ids, echo) in enumerate(prompts):
                for k in range(body.n):
                    index = prompt_index * body.n + k
                    request = Request(
                        request_id=f"{job_id}-{index}",
                        prompt_ids=tuple(ids),
                        max_tokens=max_tokens,
                        decoder=decoder,
                        sampling=SamplingParams(body.temperature, body.top_p, max(body.top_k, 0), seed, choice_index=k),
                        stop_ids=rules.stop_ids,
                        min_tokens=body.min_tokens,
                        granularity=options.granularity if options else "block",
                        watch=body.diffusing,
                    )
                    if k == 0:
                        check(request, self.facts.limits)
                    choices.append(Choice(index, request, echo))
        except RequestError as error:
            raise from_core(error) from error
        return Job(
            job_id=job_id,
            model=body.model,
            choices=tuple(choices),
            num_prompt_tokens=sum(len(ids) for ids, _ in prompts),
            decoder=decoder,
            rules=rules,
            wants_stream=body.stream,
            wants_logprobs=wants_logprobs,
            num_top_logprobs=num_top_logprobs,
            wants_token_ids=body.return_token_ids,
            wants_usage=options is not None and options.include_usage,
            wants_running_usage=options is not None and options.include_usage and options.continuous_usage_stats,
        )

    def _prompt_ids(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, list):
            return prompt
        self.check_length("prompt", len(prompt))
        return self.tokenizer.encode_text(prompt)

    def _echo(self, prompt: Prompt, is_wanted: bool) -> str:
        if not is_wanted:
            return ""
        if isinstance(prompt, str):
            return prompt
        limit = self.facts.limits.vocab_size
        return self.tokenizer.decode([token_id for token_id in prompt if 0 <= token_id < limit], skip_special=False)

    def check_length(self, param: str, num_chars: int) -> None:
        """Refuse a text that cannot fit the context before any time is spent on tokenizing it."""
        limit = self.facts.limits.max_model_len
        if num_chars > limit * self.tokenizer.max_token_chars:
            message = f"{num_chars} characters of text cannot fit the context limit of {limit} tokens"
            raise ApiError(400, "context_length_exceeded", message, param)

    def _check_counts(self, body: GenerationFields, num_prompts: int) -> None:
        if num_prompts * body.n > self.max_open:
            raise invalid(
                "n" if num_prompts == 1 else "prompt",
                f"{num_prompts} prompts × n = {body.n} is {num_prompts * body.n} choices; "
                f"this server takes at most {self.max_open} at once",
            )
        limit = self.settings.max_stop_strings
        if len(body.stop) > limit:
            raise invalid("stop", f"at most {limit} stop strings are allowed, got {len(body.stop)}")
        for stop in body.stop:
            if len(stop) > MAX_STOP_CHARS:
                raise invalid("stop", f"a stop string may have {MAX_STOP_CHARS} characters, got {len(stop)}")

    def _check_top_logprobs(self, param: str, num_top: int, temperature: float) -> None:
        """Only the chosen token's log-probability is known, and it is the top one only without sampling."""
        if num_top > 1:
            raise unsupported(param, f"{param} may be 0 or 1 on this server, got {num_top}")
        if num_top == 1 and temperature > 0.0:
            raise unsupported(param, f"{param}: 1 needs temperature 0; with sampling only 0 is supported")

    def _decoder(self, psd: PsdFields | None) -> DecoderConfig:
        if psd is None:
            return self.settings.decoder
        given = {name: value for name, value in psd.model_dump().items() if value is not None}
        try:
            return dataclasses.replace(self.settings.decoder, **given)
        except ConfigError as error:
            raise from_core(error) from error

    def _rules(self, body: GenerationFields) -> TextRules:
        ends: set[int] = set()
        if not body.ignore_eos:
            ends.update(self.facts.eos_ids, self.tokenizer.end_ids)
        return TextRules(
            stops=body.stop,
            stop_ids=frozenset(ends.union(body.stop_token_ids)),
            min_tokens=body.min_tokens,
            skip_special=body.skip_special_tokens,
            include_stop=body.include_stop_str_in_output,
        )

    def _seed(self, given: int | None) -> int:
        if given is not None:
            return given
        return secrets.randbelow(SEED_HIGH) if self.settings.seed is None else self.settings.seed

    def _rest_of_context(self, body: ChatRequest, num_prompt: int) -> int:
        """Whole blocks that fit behind the prompt, up to the server's cap; at least 1, which `check` then judges."""
        limits = self.facts.limits
        block_length = self._decoder(body.psd).block_length
        if limits.block_length is None:  # blocks begin behind the prompt
            room = (limits.max_model_len - num_prompt) // block_length * block_length
        else:  # blocks begin at multiples of their length
            room = limits.max_model_len // block_length * block_length - num_prompt
        return max(1, body.min_tokens, min(room, self.settings.default_max_tokens))


def _check_known(template: ChatTemplate, body: ConversationFields, messages: Sequence[ChatMessage]) -> None:
    """Refuse what this template would leave out of the prompt in silence."""
    if not template.knows_tools:
        why = "the model's chat template does not know tools"
        if body.offered_tools:
            raise unsupported("tools", f"tools are not supported: {why}")
        for index, message in enumerate(messages):
            if message.role in TOOL_ROLES:
                raise unsupported(f"messages.{index}.role", f"role {message.role} is not supported: {why}")
            if message.calls:
                raise unsupported(f"messages.{index}.tool_calls", f"tool calls are not supported: {why}")
    for name in body.chat_template_kwargs:
        if name not in template.variables:
            known = ", ".join(sorted(template.variables)) or "none"
            raise invalid(
                "chat_template_kwargs", f"the chat template reads no variable {name[:100]!r}; it reads: {known}"
            )
