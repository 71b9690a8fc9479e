"""A model and its engine in this process: what the server's processes do between a body and the engine's events."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from psd_core.errors import CheckpointError, ConfigError
from psd_core.events import FinishedEvent, StepOutput
from server.admission import Admission
from server.body import JsonObject
from server.boot import read_source, worker_config
from server.errors import ApiError
from server.generation import End, Track
from server.job import Choice, Job
from server.schema import parse_chat, parse_completion
from server.settings import Settings, fit_decoder
from server.terminal.source import CHAT, SourceError
from server.worker import load_engine


class LoadedModel:
    """Owns the engine. Not thread-safe."""

    def __init__(self, settings: Settings) -> None:
        """SourceError if the model cannot be loaded or the settings do not suit it."""
        size = settings.model.tensor_parallel_size
        if size > 1:
            raise SourceError(f"a model loaded here has one process: tensor_parallel_size must be 1, got {size}")
        try:
            source = asyncio.run(read_source(settings.model))
            self._engine, self.facts = load_engine(worker_config(settings, source))
            decoder = fit_decoder(settings.requests, self.facts.limits)
        except (CheckpointError, ConfigError) as error:
            raise SourceError(str(error)) from error
        self.name = settings.model.served_names[0]
        self.source = source
        requests = replace(settings.requests, decoder=decoder)
        self._admission = Admission(source.tokenizer, source.template, self.facts, requests, max_open=1)

    def admit(self, path: str, body: JsonObject) -> tuple[Job, Track]:
        """A request for one choice, and its text to be. SourceError says what is wrong with the body."""
        try:
            if path == CHAT:
                job = self._admission.chat(parse_chat(body))
            else:
                job = self._admission.completion(parse_completion(body))
        except ApiError as error:
            raise SourceError(error.message) from error
        (choice,) = job.choices
        return job, Track(choice, job.rules, self.source.tokenizer)

    @contextmanager
    def running(self, choices: Sequence[Choice]) -> Generator[Generator[StepOutput, None, None], None, None]:
        """What the engine says of these choices, step by step. Whatever still runs at the end is cancelled."""
        try:
            for choice in choices:
                self._engine.add(choice.request)
            yield self._steps()
        finally:
            for choice in choices:
                self._engine.cancel(choice.request.request_id)
            for _ in self._steps():
                pass

    def cancel(self, request_id: str) -> None:
        """End a choice that runs: the next step reports it."""
        self._engine.cancel(request_id)

    def _steps(self) -> Generator[StepOutput, None, None]:
        while self._engine.has_work():
            yield self._engine.step()


def end_of(track: Track, event: FinishedEvent) -> End:
    """How a choice ended. SourceError if the memory did not suffice."""
    if event.reason == "out_of_memory":
        raise SourceError("the memory does not suffice even for this request alone")
    return End(0, track.reason(event), track.num_tokens, event.figures)
