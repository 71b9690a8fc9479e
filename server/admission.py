"""A parsed request body to engine requests, or an error: everything that can fail does so before the first byte.

Pure but for the ids and seeds it draws: no queue, no socket.
"""

from __future__ import annotations

import dataclasses
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from psd_core.admission import check
from psd_core.config import DecoderConfig
from psd_core.errors import ConfigError, RequestError
from psd_core.request import SEED_HIGH, Request, SamplingParams
from server import toolcalls
from server.chat_template import ChatTemplate
from server.conversation import TOOL_ROLES, ChatMessage, ConversationFields, template_messages
from server.errors import ApiError, from_core, invalid, unsupported
from server.job import Choice, Job, TextRules
from server.messages import ModelFacts
from server.schema import ChatRequest, CompletionRequest, GenerationFields, Prompt, PsdFields
from server.settings import RequestSettings
from server.tokenizer import Tokenizer
from server.tuning import COMPLETION_MAX_TOKENS, MAX_STOP_CHARS


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
        prompts = [
            (self._prompt_ids(prompt), self._echo(prompt, body.echo), isinstance(prompt, list))
            for prompt in body.prompt
        ]
        max_tokens = COMPLETION_MAX_TOKENS if body.max_tokens is None else body.max_tokens
        wants_logprobs = body.logprobs is not None
        return self._job(
            body,
            prompts,
            max_tokens,
            "cmpl",
            wants_logprobs,
            body.logprobs or 0,
            num_choices=body.best_of or body.n,
            suffix_ids=self._suffix_ids(body.suffix),
            score_prompt=body.echo and wants_logprobs,
        )

    def chat(self, body: ChatRequest) -> Job:
        """ApiError 400 if the request can never be served."""
        ids = self.encode_messages(body, body.messages)
        max_tokens = body.max_completion_tokens or body.max_tokens or self._rest_of_context(body, len(ids))
        job = self._job(
            body, [(ids, "", True)], max_tokens, "chatcmpl", body.logprobs, body.top_logprobs, num_choices=body.n
        )
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
        prompts: Sequence[tuple[list[int], str, bool]],
        max_tokens: int,
        prefix: str,
        wants_logprobs: bool,
        num_top_logprobs: int,
        *,
        num_choices: int,
        suffix_ids: tuple[int, ...] = (),
        score_prompt: bool = False,
    ) -> Job:
        self._check_counts(body, len(prompts), num_choices)
        job_id = f"{prefix}-{secrets.token_hex(16)}"
        decoder = self._decoder(body.psd)
        rules = self._rules(body)
        options = body.stream_options
        seed = self._seed(body.seed)
        choices: list[Choice] = []
        try:
            for prompt_index, (ids, echo, shows_special) in enumerate(prompts):
                for k in range(num_choices):
                    index = prompt_index * num_choices + k
                    request = Request(
                        request_id=f"{job_id}-{index}",
                        prompt_ids=tuple(ids),
                        max_tokens=max_tokens,
                        decoder=decoder,
                        sampling=_sampling(body, seed, choice_index=k),
                        stop_ids=rules.stop_ids,
                        min_tokens=body.min_tokens,
                        granularity=options.granularity if options else "block",
                        watch=body.diffusing,
                        suffix_ids=suffix_ids,
                        score_prompt=score_prompt,
                        num_top_logprobs=num_top_logprobs,
                        cache_salt=body.cache_salt,
                    )
                    if k == 0:
                        check(request, self.facts.limits)
                    choices.append(Choice(index, request, echo, shows_special))
        except RequestError as error:
            raise from_core(error) from error
        return Job(
            job_id=job_id,
            model=body.model,
            choices=tuple(choices),
            num_prompt_tokens=sum(len(ids) + len(suffix_ids) for ids, _, _ in prompts),
            num_choices=num_choices,
            num_returned=body.n,
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

    def _suffix_ids(self, suffix: str) -> tuple[int, ...]:
        if not suffix:
            return ()
        self.check_length("suffix", len(suffix))
        return tuple(self.tokenizer.encode_text(suffix, with_prefix=False))

    def _echo(self, prompt: Prompt, is_wanted: bool) -> str:
        if not is_wanted:
            return ""
        if isinstance(prompt, str):
            return prompt
        limit = self.facts.limits.vocab_size
        return self.tokenizer.decode_part([token_id for token_id in prompt if 0 <= token_id < limit])

    def check_length(self, param: str, num_chars: int) -> None:
        """Refuse a text that cannot fit the context before any time is spent on tokenizing it."""
        limit = self.facts.limits.max_model_len
        if num_chars > limit * self.tokenizer.max_token_chars:
            message = f"{num_chars} characters of text cannot fit the context limit of {limit} tokens"
            raise ApiError(400, "context_length_exceeded", message, param)

    def _check_counts(self, body: GenerationFields, num_prompts: int, num_choices: int) -> None:
        name = "n" if num_choices == body.n else "best_of"
        if num_prompts * num_choices > self.max_open:
            raise invalid(
                name if num_prompts == 1 else "prompt",
                f"{num_prompts} prompts × {name} = {num_choices} is {num_prompts * num_choices} choices; "
                f"this server takes at most {self.max_open} at once",
            )
        limit = self.settings.max_stop_strings
        if len(body.stop) > limit:
            raise invalid("stop", f"at most {limit} stop strings are allowed, got {len(body.stop)}")
        for stop in body.stop:
            if len(stop) > MAX_STOP_CHARS:
                raise invalid("stop", f"a stop string may have {MAX_STOP_CHARS} characters, got {len(stop)}")

    def _decoder(self, psd: PsdFields | None) -> DecoderConfig:
        if psd is None:
            return self.settings.decoder
        given = {name: value for name, value in psd.model_dump().items() if value is not None}
        try:
            return dataclasses.replace(_yielding(self.settings.decoder, given), **given)
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
        if limits.has_grid:
            room = limits.max_model_len // block_length * block_length - num_prompt
        else:  # blocks begin behind the prompt
            room = (limits.max_model_len - num_prompt) // block_length * block_length
        return max(1, body.min_tokens, min(room, self.settings.default_max_tokens))


def _yielding(default: DecoderConfig, given: Mapping[str, object]) -> DecoderConfig:
    """The server's decoder without those defaults that a request's own policy or acceptance rules out."""
    acceptance, policy = given.get("acceptance", default.acceptance), given.get("policy", default.policy)
    if acceptance != "exact" and default.draft_increment == "subsets":
        default = dataclasses.replace(default, draft_increment=1)
    if (acceptance != "exact" or policy == "lopa") and "max_edit_passes" not in given:  # who names it wants editing
        default = dataclasses.replace(default, edit_threshold=None)
    return default


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


def _sampling(body: GenerationFields, seed: int, choice_index: int) -> SamplingParams:
    return SamplingParams(
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=max(body.top_k, 0),
        min_p=body.min_p,
        seed=seed,
        choice_index=choice_index,
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        repetition_penalty=body.repetition_penalty,
        logit_bias=body.logit_bias,
    )
