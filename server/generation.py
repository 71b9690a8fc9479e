"""One admitted request while it runs: engine events in, per-choice text out.

Pure bookkeeping per choice lives in `Track`; `Generation` joins the choices of a request into one stream and makes
sure that, however it ends, nothing of it stays in the engine.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Literal, Protocol

from psd_core.events import CanvasEvent, Figures, FinishedEvent, PromptEvent, TokensEvent, TopEntries
from server import stops
from server.detokenizer import Detokenizer
from server.errors import ApiError, unavailable
from server.job import Choice, Job, TextRules
from server.metrics import Metrics
from server.pool import BegunEvent, Event, FailedEvent, WorkerPool
from server.tokenizer import Tokenizer
from server.tuning import MAX_PENDING_EVENTS

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Alternative:
    """A token that could have stood in a place, by itself as text."""

    token_id: int
    text: str
    logprob: float


@dataclass(frozen=True, slots=True)
class Token:
    """One returned token. `text` is what it completed; the texts joined are the text before any cut.

    logprob is None for the first token of an echoed prompt; offset is where the token's text starts in the text of the
    choice; `top` holds the most probable tokens of its place, the token itself included if it is one of them.
    """

    token_id: int
    text: str
    logprob: float | None
    offset: int
    top: tuple[Alternative, ...] = ()


@dataclass(frozen=True, slots=True)
class Prompt:
    """The echoed prompt's tokens with their log-probabilities. Comes before anything else of its choice."""

    index: int
    tokens: tuple[Token, ...]


@dataclass(frozen=True, slots=True)
class Delta:
    """New text of a choice and the tokens it came from; either may be empty, not both."""

    index: int
    text: str
    tokens: tuple[Token, ...]


@dataclass(frozen=True, slots=True)
class Canvas:
    """A look at the block that a choice is working on."""

    index: int
    event: CanvasEvent


@dataclass(frozen=True, slots=True)
class End:
    """The one last update of a choice."""

    index: int
    reason: FinishReason
    num_tokens: int
    figures: Figures


Update = Prompt | Delta | Canvas | End


class Patience(Protocol):
    """How long a request may take from its arrival; 0 is for ever."""

    @property
    def timeout_seconds(self) -> float:
        """In all."""

    @property
    def queue_seconds(self) -> float:
        """Until the first forward of any of its choices."""


class Track:
    """Text and counts of one choice. Knows no queue and no clock."""

    def __init__(self, choice: Choice, rules: TextRules, tokenizer: Tokenizer) -> None:
        self.index = choice.index
        self.num_tokens = 0
        self.is_cut = False  # a stop string matched: later tokens do not count
        self._rules = rules
        self._tokenizer = tokenizer
        self._choice = choice
        self._detokenizer = Detokenizer(tokenizer, skip_special=rules.skip_special, kept_ids=rules.kept_ids)
        self._stops = stops.StopState(rules.stops)
        self._offset = len(choice.echo)

    def take_prompt(self, event: PromptEvent) -> Prompt:
        """The prompt's tokens, whose texts joined are the echo."""
        detokenizer = Detokenizer(self._tokenizer, skip_special=not self._choice.shows_special)
        tokens: list[Token] = []
        offset = 0
        logprobs = (None, *event.logprobs)
        tops = ((), *event.top) if event.top else ((),) * len(logprobs)
        for token_id, logprob, top in zip(self._choice.request.prompt_ids, logprobs, tops, strict=True):
            text = detokenizer.push(token_id)
            tokens.append(Token(token_id, text, logprob, offset, self._alternatives(top, token_id, text)))
            offset += len(text)
        return Prompt(self.index, tuple(tokens))

    def take(self, event: TokensEvent) -> Delta:
        """Add tokens; text that could still turn into a stop string is held back."""
        texts: list[str] = []
        tokens: list[Token] = []
        tops = event.top or ((),) * len(event.token_ids)
        for token_id, logprob, top in zip(event.token_ids, event.logprobs, tops, strict=True):
            if self.is_cut:
                break
            text = self._decode(token_id)
            tokens.append(Token(token_id, text, logprob, self._offset, self._alternatives(top, token_id, text)))
            self._offset += len(text)
            self.num_tokens += 1
            texts.append(self._cut(text))
        return Delta(self.index, "".join(texts), tuple(tokens))

    def finish(self) -> Delta:
        """What was held back, once no token will come."""
        if self.is_cut:
            return Delta(self.index, "", ())
        text = self._cut(self._detokenizer.flush())
        if not self.is_cut:
            text += stops.flush(self._stops).text
        return Delta(self.index, text, ())

    def reason(self, event: FinishedEvent) -> FinishReason:
        """How the choice ended for the client."""
        return "stop" if self.is_cut or event.reason == "stop" else "length"

    def _alternatives(self, top: TopEntries, token_id: int, text: str) -> tuple[Alternative, ...]:
        """With texts; the token that was taken shows the text it completed."""
        return tuple(
            Alternative(other, text if other == token_id else self._tokenizer.decode_part([other]), value)
            for other, value in top
        )

    def _decode(self, token_id: int) -> str:
        if token_id in self._rules.stop_ids and self.num_tokens >= self._rules.min_tokens:
            return self._detokenizer.push(token_id) if self._rules.include_stop else ""
        return self._detokenizer.push(token_id)

    def _cut(self, text: str) -> str:
        if not self._rules.stops or self.num_tokens <= self._rules.min_tokens:
            return text
        result = stops.push(self._stops, text, include_match=self._rules.include_stop)
        self._stops = result.state
        self.is_cut = result.matched is not None
        return result.text


class Generation:
    """The choices of one job in the workers. Whoever calls `start` must call `close`, which cancels what still runs."""

    def __init__(
        self, job: Job, endpoint: str, pool: WorkerPool, tokenizer: Tokenizer, metrics: Metrics, arrival: float
    ) -> None:
        """arrival: when the request came in, on the clock of time.monotonic."""
        self.job = job
        self.arrival = arrival
        self.started_at = arrival  # when it was handed to the workers
        self.first_text_seconds: float | None = None
        self.ends: dict[int, End] = {}
        self.failure: ApiError | None = None
        self._is_begun = False
        self.endpoint = endpoint
        self._pool = pool
        self._metrics = metrics
        self._queue: asyncio.Queue[Event] = asyncio.Queue()
        self._tracks = {choice.request.request_id: Track(choice, job.rules, tokenizer) for choice in job.choices}
        self._last_text_at: dict[int, float] = {}

    def start(self) -> None:
        """Hand the choices to the workers. ApiError 503 if none is ready."""
        self.started_at = time.monotonic()
        self._pool.submit([choice.request for choice in self.job.choices], self._put)
        self._metrics.admitted(self.job.num_prompt_tokens)

    def close(self) -> None:
        """Cancel whatever has not ended, and count it."""
        open_ids = [request_id for request_id, track in self._tracks.items() if track.index not in self.ends]
        self._pool.forget(open_ids)
        for request_id in open_ids:
            self._metrics.ended(self.endpoint, self.reason, self._tracks[request_id].num_tokens, None)
        self._metrics.answered(time.monotonic() - self.arrival)

    @property
    def reason(self) -> str:
        """How the request ended, for log and metrics: that of its choices, else error or cancelled."""
        if len(self.ends) == len(self._tracks):
            return "length" if any(end.reason == "length" for end in self.ends.values()) else "stop"
        return "cancelled" if self.failure is None else "error"

    @property
    def num_tokens(self) -> int:
        """Tokens returned so far, over all choices."""
        return sum(track.num_tokens for track in self._tracks.values())

    async def updates(self, patience: Patience) -> AsyncGenerator[Update, None]:
        """Every update until each choice has its End. ApiError if the work fails or takes too long."""
        while len(self.ends) < len(self._tracks):
            for update in self._digest(await self._next(patience)):
                yield update

    async def _next(self, patience: Patience) -> Event:
        in_all = patience.timeout_seconds or math.inf
        in_queue = math.inf if self._is_begun else patience.queue_seconds or math.inf
        seconds = min(in_all, in_queue)
        remaining = None if seconds == math.inf else self.arrival + seconds - time.monotonic()
        try:
            return await asyncio.wait_for(self._queue.get(), remaining)
        except TimeoutError:
            if in_queue < in_all:
                message = f"no place became free within {in_queue:g} s; try again later"
                raise self.fail(unavailable("queue_timeout", message)) from None
            message = f"the request took longer than the {in_all:g} s that are allowed"
            raise self.fail(ApiError(504, "request_timeout", message)) from None

    def _put(self, event: Event) -> None:
        """Queue an event. Tokens are bounded by max_tokens; views of the canvas are dropped for a slow reader."""
        if not isinstance(event, CanvasEvent) or self._queue.qsize() < MAX_PENDING_EVENTS:
            self._queue.put_nowait(event)

    def _digest(self, event: Event) -> list[Update]:
        track = self._tracks[event.request_id]
        match event:
            case PromptEvent():
                return [track.take_prompt(event)]
            case TokensEvent():
                if track.is_cut:
                    return []
                delta = track.take(event)
                if track.is_cut:
                    self._pool.cancel([event.request_id])
                return self._timed(delta)
            case CanvasEvent():
                return [] if track.is_cut else [Canvas(track.index, event)]
            case BegunEvent():
                self._is_begun = True
                return []
            case FinishedEvent(reason="out_of_memory"):
                raise self.fail(unavailable("out_of_memory", "the memory does not suffice for this request now"))
            case FinishedEvent():
                rest = self._timed(track.finish())
                end = End(track.index, track.reason(event), track.num_tokens, event.figures)
                self.ends[track.index] = end
                self._metrics.ended(self.endpoint, end.reason, end.num_tokens, end.figures)
                return [*rest, end]
            case FailedEvent(_, error):
                raise self.fail(error)

    def fail(self, error: ApiError) -> ApiError:
        """The work failed: this is what log and metrics say of it."""
        self.failure = error
        return error

    def _timed(self, delta: Delta) -> list[Update]:
        """The delta, unless it is empty; a delta with text is a chunk for the latency metrics."""
        if not delta.text and not delta.tokens:
            return []
        if delta.text:
            now = time.monotonic()
            before = self._last_text_at.get(delta.index)
            if before is None:
                self._metrics.first_text(now - self.arrival)
                if self.first_text_seconds is None:
                    self.first_text_seconds = now - self.arrival
            else:
                self._metrics.next_text(now - before, len(delta.tokens))
            self._last_text_at[delta.index] = now
        return [delta]
