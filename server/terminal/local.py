"""An engine in this process as a source. Goes the server's way from body to chunks, but for HTTP and worker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator
from dataclasses import replace

from psd_core.errors import CheckpointError, ConfigError
from psd_core.events import CanvasEvent, FinishedEvent, TokensEvent
from server.admission import Admission
from server.body import JsonObject
from server.boot import read_source, worker_config
from server.errors import ApiError
from server.generation import Canvas, Delta, End, Token, Track
from server.job import Job
from server.render import Chat, Completions, Renderer
from server.schema import parse_chat, parse_completion
from server.settings import Settings, fit_decoder
from server.terminal.source import CHAT, SourceError
from server.worker import load_engine


class LocalModel:
    """A loaded model and its engine."""

    def __init__(self, settings: Settings) -> None:
        """SourceError if the model cannot be loaded or the settings do not suit it."""
        if settings.model.tensor_parallel_size > 1:
            size = settings.model.tensor_parallel_size
            raise SourceError(f"a model loaded here has one process: tensor_parallel_size must be 1, got {size}")
        try:
            source = asyncio.run(read_source(settings.model))
            self._engine, facts = load_engine(worker_config(settings, source))
            decoder = fit_decoder(settings.requests, facts.limits)
        except (CheckpointError, ConfigError) as error:
            raise SourceError(str(error)) from error
        self.model = settings.model.served_names[0]
        self._tokenizer = source.tokenizer
        requests = replace(settings.requests, decoder=decoder)
        self._admission = Admission(source.tokenizer, source.template, facts, requests, max_open=1)

    def stream(self, path: str, body: JsonObject) -> Generator[JsonObject, None, None]:
        """See Source."""
        try:
            job = (
                self._admission.chat(parse_chat(body))
                if path == CHAT
                else self._admission.completion(parse_completion(body))
            )
        except ApiError as error:
            raise SourceError(error.message) from error
        renderer = Renderer(job, Chat() if path == CHAT else Completions(), self._tokenizer, int(time.time()))
        (choice,) = job.choices
        self._engine.add(choice.request)
        try:
            yield from self._chunks(job, renderer)
        finally:
            self._engine.cancel(choice.request.request_id)
            while self._engine.has_work():
                self._engine.step()

    def _chunks(self, job: Job, renderer: Renderer) -> Generator[JsonObject, None, None]:
        (choice,) = job.choices
        track = Track(choice, job.rules, self._tokenizer)
        pending: tuple[Token, ...] = ()
        for event in self._events():
            match event:
                case TokensEvent() if not track.is_cut:
                    delta = track.take(event)
                    pending += delta.tokens
                    if delta.text and (part := renderer.part(0, delta.text, pending, track.num_tokens)):
                        yield part
                        pending = ()
                    if track.is_cut:
                        self._engine.cancel(event.request_id)
                case CanvasEvent() if not track.is_cut:
                    yield renderer.canvas(Canvas(0, event))
                case FinishedEvent():
                    rest: Delta = track.finish()
                    if rest.text and (part := renderer.part(0, rest.text, pending, track.num_tokens)):
                        yield part
                        pending = ()
                    end = End(0, track.reason(event), track.num_tokens, event.figures)
                    yield renderer.last(end, pending, track.num_tokens)
                    yield renderer.usage([end])

    def _events(self) -> Generator[TokensEvent | CanvasEvent | FinishedEvent, None, None]:
        while self._engine.has_work():
            output = self._engine.step()
            yield from output.tokens
            yield from output.canvases
            yield from output.finished
