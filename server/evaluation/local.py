"""An engine in this process as a source. Goes the server's way from body to text, but for HTTP and worker."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field, replace

import torch

from psd_core.errors import CheckpointError, ConfigError
from psd_core.events import FinishedEvent, TokensEvent
from server import figures
from server.admission import Admission
from server.body import JsonObject
from server.boot import read_source, worker_config
from server.errors import ApiError
from server.evaluation.answer import Reply, read_cost, read_settings
from server.evaluation.checkpoint import identify
from server.generation import End, Track
from server.job import Job
from server.schema import parse_chat, parse_completion
from server.settings import Settings, fit_decoder
from server.terminal.source import CHAT, SourceError
from server.worker import load_engine


@dataclass(slots=True)
class _Open:
    """A request that runs."""

    name: str
    job: Job
    track: Track
    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)


class LocalSource:
    """A loaded model and its engine. Not thread-safe."""

    def __init__(self, settings: Settings, num_threads: int | None) -> None:
        """SourceError if the model cannot be loaded or the settings do not suit it."""
        if num_threads is not None:
            torch.set_num_threads(num_threads)
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
        self.facts: JsonObject = {
            "model": settings.model.source,
            "weights": identify(source.folder),
            "architecture": facts.architecture,
            "num_parameters": facts.num_parameters,
            "dtype": facts.dtype,
            "quantization": facts.quantization,
            "device": facts.device,
            "batch": settings.engine.max_num_seqs,
            "max_num_batched_tokens": settings.engine.max_num_batched_tokens,
            "threads": torch.get_num_threads(),
        }

    def replies(self, path: str, bodies: Mapping[str, JsonObject]) -> Generator[tuple[str, Reply], None, None]:
        """See Source. Every body is checked before the first forward."""
        opened: dict[str, _Open] = {}
        for name, body in bodies.items():
            job = self._admit(name, path, body)
            (choice,) = job.choices
            opened[choice.request.request_id] = _Open(name, job, Track(choice, job.rules, self._tokenizer))
        for one in opened.values():
            self._engine.add(one.job.choices[0].request)
        try:
            while self._engine.has_work():
                output = self._engine.step()
                for event in output.tokens:
                    self._take(opened[event.request_id], event)
                for finished in output.finished:
                    yield self._reply(opened.pop(finished.request_id), finished)
        finally:
            for request_id in opened:
                self._engine.cancel(request_id)
            while self._engine.has_work():
                self._engine.step()

    def _admit(self, name: str, path: str, body: JsonObject) -> Job:
        try:
            if path == CHAT:
                return self._admission.chat(parse_chat(body))
            return self._admission.completion(parse_completion(body))
        except ApiError as error:
            raise SourceError(f"{name}: {error.message}") from error

    def _take(self, one: _Open, event: TokensEvent) -> None:
        if one.track.is_cut:
            return
        delta = one.track.take(event)
        one.texts.append(delta.text)
        one.token_ids += [token.token_id for token in delta.tokens]
        if one.track.is_cut:
            self._engine.cancel(event.request_id)

    def _reply(self, one: _Open, event: FinishedEvent) -> tuple[str, Reply]:
        if event.reason == "out_of_memory":
            raise SourceError(f"{one.name}: the memory does not suffice even for this one alone")
        text = "".join(one.texts) + one.track.finish().text
        end = End(0, one.track.reason(event), one.track.num_tokens, event.figures)
        psd = figures.psd(one.job.decoder, [end])
        cost = read_cost(psd, one.track.num_tokens)
        return one.name, Reply(text, tuple(one.token_ids), end.reason, cost, read_settings(psd))
