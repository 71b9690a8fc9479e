"""An engine in this process as a source. Goes the server's way from body to chunks, but for HTTP and worker."""

from __future__ import annotations

import time
from collections.abc import Generator

from psd_core.events import CanvasEvent, FinishedEvent, StepOutput, TokensEvent
from server.body import JsonObject
from server.generation import Canvas, Delta, Token, Track
from server.render import Chat, Completions, Renderer
from server.settings import Settings
from server.terminal.loaded import LoadedModel, end_of
from server.terminal.source import CHAT


class LocalModel:
    """A loaded model that answers one request after the other."""

    def __init__(self, settings: Settings) -> None:
        """SourceError if the model cannot be loaded or the settings do not suit it."""
        self._loaded = LoadedModel(settings)
        self.model = self._loaded.name

    def stream(self, path: str, body: JsonObject) -> Generator[JsonObject, None, None]:
        """See Source."""
        job, track = self._loaded.admit(path, body)
        dialect = Chat() if path == CHAT else Completions()
        renderer = Renderer(job, dialect, self._loaded.source.tokenizer, int(time.time()))
        with self._loaded.running(job.choices) as steps:
            yield from self._chunks(track, renderer, steps)

    def _chunks(
        self, track: Track, renderer: Renderer, steps: Generator[StepOutput, None, None]
    ) -> Generator[JsonObject, None, None]:
        pending: tuple[Token, ...] = ()
        for event in (event for step in steps for event in (*step.tokens, *step.canvases, *step.finished)):
            match event:
                case TokensEvent() if not track.is_cut:
                    delta = track.take(event)
                    pending += delta.tokens
                    if delta.text and (part := renderer.part(0, delta.text, pending, track.num_tokens)):
                        yield part
                        pending = ()
                    if track.is_cut:
                        self._loaded.cancel(event.request_id)
                case CanvasEvent() if not track.is_cut:
                    yield renderer.canvas(Canvas(0, event))
                case FinishedEvent():
                    rest: Delta = track.finish()
                    end = end_of(track, event)
                    if rest.text and (part := renderer.part(0, rest.text, pending, track.num_tokens)):
                        yield part
                        pending = ()
                    yield renderer.last(end, pending, track.num_tokens)
                    yield renderer.usage([end])
