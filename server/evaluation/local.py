"""An engine in this process as a source. Goes the server's way from body to text, but for HTTP and worker."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field

import torch

from psd_core.events import FinishedEvent, TokensEvent
from server import figures
from server.body import JsonObject
from server.evaluation.answer import Reply, read_cost, read_settings
from server.evaluation.checkpoint import identify
from server.generation import Track
from server.job import Job
from server.settings import ModelSettings, Settings
from server.terminal.loaded import LoadedModel, end_of
from server.terminal.source import SourceError


def _threads(model: ModelSettings, device: str) -> int | str:
    """The number that was set. One that is measured may be another when the run goes on, and the text is the same."""
    is_measured = device == "cpu" and not model.threads and model.max_threads > 0
    return "measured" if is_measured else torch.get_num_threads()


@dataclass(slots=True)
class _Open:
    """A request that runs."""

    name: str
    job: Job
    track: Track
    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)


class LocalSource:
    """A loaded model that answers many requests at once. Not thread-safe."""

    def __init__(self, settings: Settings) -> None:
        """SourceError if the model cannot be loaded or the settings do not suit it."""
        self._loaded = LoadedModel(settings)
        self.model = self._loaded.name
        facts, source, template = self._loaded.facts, self._loaded.source, settings.model.chat_template
        self.facts: JsonObject = {
            "model": settings.model.source,
            "checkpoint": identify(source.folder, source.tokenizer_folder, template),
            "architecture": facts.architecture,
            "num_parameters": facts.num_parameters,
            "dtype": facts.dtype,
            "quantization": facts.quantization,
            "device": facts.device,
            "batch": settings.engine.max_num_seqs,
            "max_num_batched_tokens": settings.engine.max_num_batched_tokens,
            "threads": _threads(settings.model, facts.device),
        }

    def replies(self, path: str, bodies: Mapping[str, JsonObject]) -> Generator[tuple[str, Reply], None, None]:
        """See Source. Every body is checked before the first forward."""
        opened: dict[str, _Open] = {}
        for name, body in bodies.items():
            try:
                job, track = self._loaded.admit(path, body)
            except SourceError as error:
                raise SourceError(f"{name}: {error}") from error
            opened[job.choices[0].request.request_id] = _Open(name, job, track)
        with self._loaded.running([one.job.choices[0] for one in opened.values()]) as steps:
            for step in steps:
                for event in step.tokens:
                    self._take(opened[event.request_id], event)
                for finished in step.finished:
                    yield _reply(opened[finished.request_id], finished)

    def _take(self, one: _Open, event: TokensEvent) -> None:
        if one.track.is_cut:
            return
        delta = one.track.take(event)
        one.texts.append(delta.text)
        one.token_ids += [token.token_id for token in delta.tokens]
        if one.track.is_cut:
            self._loaded.cancel(event.request_id)


def _reply(one: _Open, event: FinishedEvent) -> tuple[str, Reply]:
    text = "".join(one.texts) + one.track.finish().text
    try:
        end = end_of(one.track, event)
    except SourceError as error:
        raise SourceError(f"{one.name}: {error}") from error
    psd = figures.psd(one.job.decoder, [end])
    cost = read_cost(psd, one.track.num_tokens)
    return one.name, Reply(text, tuple(one.token_ids), end.reason, cost, read_settings(psd))
