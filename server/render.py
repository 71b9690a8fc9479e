"""OpenAI's response objects. A Dialect is what differs between the two endpoints; the rest is the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from server import figures, toolcalls
from server.body import JsonObject
from server.generation import Canvas, End, Token
from server.job import Choice, Job
from server.logprobs import chat_logprobs, completion_logprobs
from server.tokenizer import Tokenizer
from server.toolcalls import ToolCall


@dataclass(frozen=True, slots=True)
class Said:
    """What a choice says, whole or in part. first_call: how many calls came before those here."""

    text: str
    calls: tuple[ToolCall, ...] = ()
    first_call: int = 0


class Dialect(Protocol):
    """How one endpoint names things."""

    @property
    def endpoint(self) -> str:
        """Label of metrics and logs."""

    @property
    def whole_object(self) -> str:
        """`object` of a whole answer."""

    @property
    def chunk_object(self) -> str:
        """`object` of a chunk."""

    def opening(self, choice: Choice) -> JsonObject | None:
        """Choice of the first chunk, before any token; None if there is nothing to say yet."""

    def whole(self, index: int, said: Said, logprobs: JsonObject | None, reason: str) -> JsonObject:
        """A finished choice."""

    def part(self, index: int, said: Said, logprobs: JsonObject | None) -> JsonObject:
        """A choice of a chunk with text or calls."""

    def last(self, index: int, logprobs: JsonObject | None, reason: str) -> JsonObject:
        """A choice of the terminal chunk, without text."""

    def logprobs(self, tokens: Sequence[Token], num_top: int) -> JsonObject:
        """Log-probabilities of some tokens."""


class Completions:
    """/v1/completions."""

    endpoint = "completions"
    whole_object = "text_completion"
    chunk_object = "text_completion"

    def opening(self, choice: Choice) -> JsonObject | None:
        """The prompt, if it is to be echoed; with log-probabilities it comes once these are known."""
        is_ready = choice.echo and not choice.request.score_prompt
        return self.part(choice.index, Said(choice.echo), None) if is_ready else None

    def whole(self, index: int, said: Said, logprobs: JsonObject | None, reason: str) -> JsonObject:
        """See Dialect."""
        return {"index": index, "text": said.text, "logprobs": logprobs, "finish_reason": reason}

    def part(self, index: int, said: Said, logprobs: JsonObject | None) -> JsonObject:
        """See Dialect."""
        return {"index": index, "text": said.text, "logprobs": logprobs, "finish_reason": None}

    def last(self, index: int, logprobs: JsonObject | None, reason: str) -> JsonObject:
        """See Dialect."""
        return {"index": index, "text": "", "logprobs": logprobs, "finish_reason": reason}

    def logprobs(self, tokens: Sequence[Token], num_top: int) -> JsonObject:
        """See Dialect."""
        return completion_logprobs(tokens, num_top)


class Chat:
    """/v1/chat/completions."""

    endpoint = "chat"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def opening(self, choice: Choice) -> JsonObject | None:
        """The role."""
        delta = {"role": "assistant", "content": ""}
        return {"index": choice.index, "delta": delta, "logprobs": None, "finish_reason": None}

    def whole(self, index: int, said: Said, logprobs: JsonObject | None, reason: str) -> JsonObject:
        """See Dialect."""
        content = said.text if said.text or not said.calls else None
        message: JsonObject = {"role": "assistant", "content": content, "refusal": None, "annotations": []}
        if said.calls:
            message["tool_calls"] = [_call(call) for call in said.calls]
        return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": reason}

    def part(self, index: int, said: Said, logprobs: JsonObject | None) -> JsonObject:
        """See Dialect."""
        delta: JsonObject = {"content": said.text} if said.text else {}
        if said.calls:
            delta["tool_calls"] = [
                {"index": said.first_call + position, **_call(call)} for position, call in enumerate(said.calls)
            ]
        return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": None}

    def last(self, index: int, logprobs: JsonObject | None, reason: str) -> JsonObject:
        """See Dialect."""
        return {"index": index, "delta": {}, "logprobs": logprobs, "finish_reason": reason}

    def logprobs(self, tokens: Sequence[Token], num_top: int) -> JsonObject:
        """See Dialect."""
        return chat_logprobs(tokens, num_top)


class Renderer:
    """Objects of one answer: id, time and model are the same in every one of them."""

    def __init__(self, job: Job, dialect: Dialect, tokenizer: Tokenizer, created: int) -> None:
        """created: Unix seconds."""
        self._job = job
        self._dialect = dialect
        self._tokenizer = tokenizer
        self._id = job.job_id
        self._created = created
        self._announced: set[int] = set()  # choices whose prompt ids are out
        self._token_texts: dict[int, str] = {}  # of the tokens that canvases showed
        self._scans: dict[int, toolcalls.ScanState] = {}  # of the choices in whose text calls are looked for
        self._num_calls: Counter[int] = Counter()  # per choice

    def opening(self, choice: Choice) -> JsonObject | None:
        """The first chunk of a choice, or None if the dialect has none."""
        entry = self._dialect.opening(choice)
        return None if entry is None else self._chunk([self._with_ids(entry, choice.index, ())], 0)

    def prompt(self, choice: Choice, tokens: Sequence[Token]) -> JsonObject:
        """The first chunk of a choice whose prompt is echoed with log-probabilities."""
        entry = self._dialect.part(choice.index, Said(choice.echo), self._logprobs(tokens))
        return self._chunk([self._with_ids(entry, choice.index, ())], 0)

    def part(self, index: int, text: str, tokens: Sequence[Token], num_tokens: int) -> JsonObject | None:
        """A chunk with text. num_tokens: returned so far, over all choices.

        None if all of the text must be held back, because it may belong to a tool call.
        """
        return self._part(index, self._say(index, text), tokens, num_tokens)

    def rest(self, index: int, tokens: Sequence[Token], num_tokens: int) -> JsonObject | None:
        """A chunk with what was held back, once no text will come; None if nothing was."""
        if not self._job.parses_calls:
            return None
        return self._part(index, self._say(index, "", is_last=True), tokens, num_tokens)

    def _part(self, index: int, said: Said, tokens: Sequence[Token], num_tokens: int) -> JsonObject | None:
        if not said.text and not said.calls:
            return None
        entry = self._dialect.part(index, said, self._logprobs(tokens))
        return self._chunk([self._with_ids(entry, index, tokens)], num_tokens)

    def _say(self, index: int, text: str, *, is_last: bool = False) -> Said:
        """More text of a choice, with its tool calls taken out."""
        if not self._job.parses_calls:
            return Said(text)
        result = toolcalls.push(self._scans.get(index, toolcalls.ScanState()), text)
        said, calls = result.text, result.calls
        if is_last:
            rest = toolcalls.flush(result.state)
            said, calls = said + rest.text, calls + rest.calls
        self._scans[index] = result.state
        self._num_calls[index] += len(calls)
        return Said(said, calls, self._num_calls[index] - len(calls))

    def _reason(self, end: End) -> str:
        """A choice that stopped by itself after a call stopped for it."""
        return "tool_calls" if end.reason == "stop" and self._num_calls[end.index] else end.reason

    def last(self, end: End, tokens: Sequence[Token], num_tokens: int) -> JsonObject:
        """The terminal chunk of a choice, with the tokens that brought no text and the choice's own figures."""
        entry = self._dialect.last(end.index, self._logprobs(tokens) if tokens else None, self._reason(end))
        chunk = self._chunk([self._with_ids(entry, end.index, tokens)], num_tokens)
        return chunk | {"psd": figures.psd(self._job.decoder, [end])}

    def usage(self, ends: Sequence[End]) -> JsonObject:
        """The chunk without choices that closes a stream, if the client asked for it."""
        return self._chunk([], 0) | self._totals(ends)

    def canvas(self, canvas: Canvas) -> JsonObject:
        """A chunk without choices that shows the active block."""
        event = canvas.event
        shown: JsonObject = {
            "index": canvas.index,
            "start": event.start,
            "token_ids": list(event.token_ids),
            "tokens": [self._token_text(token_id) for token_id in event.token_ids],
            "candidates": [self._token_text(token_id) for token_id in event.candidate_ids],
            "confidences": [None if share is None else round(share, 4) for share in event.confidences],
            "depths": list(event.depths),
            "rejected": list(event.rejected),
            "phase": event.phase,
            "forwards": event.forwards,
            "steps": event.steps,
            "rows": event.rows,
            "drafted": event.drafted,
            "accepted": event.accepted,
            "length": event.canvas_length,
        }
        return self._chunk([], 0) | {"psd": {"canvas": shown}}

    def whole(
        self,
        texts: Sequence[str],
        tokens: Sequence[Sequence[Token]],
        ends: Sequence[End],
        kept: Sequence[int],
        num_echoed: Sequence[int],
    ) -> JsonObject:
        """The answer in one piece. Sequences are in the order of the choices; `kept` ones are shown, in that order.

        num_echoed   leading tokens of each choice that belong to its prompt
        """
        choices: list[JsonObject] = []
        for shown, index in enumerate(kept):
            end = ends[index]
            said = self._say(end.index, texts[index], is_last=True)
            entry = self._dialect.whole(shown, said, self._logprobs(tokens[index]), self._reason(end))
            choices.append(self._with_ids(entry, index, tokens[index][num_echoed[index] :]))
        return self._object(self._dialect.whole_object, choices) | self._totals(ends)

    def _token_text(self, token_id: int | None) -> str | None:
        """A token on its own; every event of a watched request asks for the same few again."""
        if token_id is None:
            return None
        text = self._token_texts.get(token_id)
        if text is None:
            text = self._token_texts[token_id] = self._tokenizer.decode_part([token_id])
        return text

    def _totals(self, ends: Sequence[End]) -> JsonObject:
        num_tokens = sum(end.num_tokens for end in ends)
        return {
            "usage": figures.usage(self._job.num_prompt_tokens, num_tokens, ends),
            "psd": figures.psd(self._job.decoder, ends),
        }

    def _chunk(self, choices: list[JsonObject], num_tokens: int) -> JsonObject:
        chunk = self._object(self._dialect.chunk_object, choices)
        if self._job.wants_running_usage and choices:
            return chunk | {"usage": figures.usage(self._job.num_prompt_tokens, num_tokens, [])}
        return chunk | {"usage": None} if self._job.wants_usage else chunk

    def _object(self, kind: str, choices: list[JsonObject]) -> JsonObject:
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self._job.model,
            "choices": choices,
        }

    def _logprobs(self, tokens: Sequence[Token]) -> JsonObject | None:
        return self._dialect.logprobs(tokens, self._job.num_top_logprobs) if self._job.wants_logprobs else None

    def _with_ids(self, entry: JsonObject, index: int, tokens: Sequence[Token]) -> JsonObject:
        """Add token_ids, and once per choice prompt_token_ids, if the client asked for them."""
        if not self._job.wants_token_ids:
            return entry
        ids: JsonObject = {"token_ids": [token.token_id for token in tokens]}
        if index not in self._announced:
            self._announced.add(index)
            ids["prompt_token_ids"] = list(self._job.choices[index].request.prompt_ids)
        return entry | ids


def _call(call: ToolCall) -> JsonObject:
    return {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
