"""One tree of spans per request, drawn when it ends from the figures that are kept anyway: tracing costs a request
nothing while it runs.

    chat                      the whole request, with the caller's trace as parent
    ├── queue  (per choice)   until its first forward
    ├── refresh (per choice)  forwards that recomputed its cached context; left out if there were none
    ├── denoise (per choice)  all other forwards
    └── stream                from the first text to the last

A choice's refreshes lie between its denoising forwards; their times are summed up and drawn as one span each, one after
the other. No span carries text.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from server.generation import End, Generation
from server.version import VERSION

NANOSECONDS: Final = 1e9
EXPORT_SECONDS: Final = 5.0  # for one attempt to send; an unreachable collector must not delay the end


def otlp_provider(endpoint: str) -> TracerProvider:
    """Sends to a collector, e.g. http://localhost:4318/v1/traces, in a thread of its own."""
    resource = Resource.create({"service.name": "psd-server", "service.version": VERSION})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint, timeout=EXPORT_SECONDS)))
    return provider


class OtelTraces:
    """Turns finished requests into spans of a provider. Owner of the provider."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("psd-server", VERSION)
        self._propagator = TraceContextTextMapPropagator()

    def record(self, generation: Generation, headers: Mapping[str, str], request_id: str) -> None:
        """See Traces."""
        clock = _Clock()
        job = generation.job
        forwards = sum(end.figures.forwards for end in generation.ends.values())
        root = self._tracer.start_span(
            generation.endpoint,
            context=self._propagator.extract(headers),
            kind=SpanKind.SERVER,
            start_time=clock.at(generation.arrival),
            attributes={
                "gen_ai.request.model": job.model,
                "gen_ai.response.id": job.job_id,
                "gen_ai.usage.input_tokens": job.num_prompt_tokens,
                "gen_ai.usage.output_tokens": generation.num_tokens,
                "psd.request_id": request_id,
                "psd.finish_reason": generation.reason,
                "psd.forwards": forwards,
                "psd.tokens_per_forward": generation.num_tokens / forwards if forwards else 0.0,
            },
        )
        for end in generation.ends.values():
            _record_choice(self._tracer, root, end, generation.started_at, clock)
        if generation.first_text_seconds is not None:
            _record_span(
                self._tracer, root, "stream", generation.arrival + generation.first_text_seconds, clock.now, clock
            )
        if generation.failure is not None:
            root.set_status(Status(StatusCode.ERROR, generation.failure.code))
        root.end(clock.at(clock.now))

    def close(self) -> None:
        """See Traces."""
        self._provider.shutdown()


class _Clock:
    """Places moments of time.monotonic on the wall clock that spans use."""

    def __init__(self) -> None:
        self.now = time.monotonic()
        self._wall = time.time_ns()

    def at(self, moment: float) -> int:
        """Nanoseconds since the epoch."""
        return self._wall - int((self.now - moment) * NANOSECONDS)


def _record_choice(tracer: Tracer, root: Span, end: End, started: float, clock: _Clock) -> None:
    figures, index = end.figures, end.index
    begun = started + figures.queue_seconds
    refreshed = begun + figures.refresh_seconds
    _record_span(tracer, root, "queue", started, begun, clock, index=index)
    if figures.refresh_forwards:
        _record_span(tracer, root, "refresh", begun, refreshed, clock, index=index, forwards=figures.refresh_forwards)
    _record_span(
        *(tracer, root, "denoise", refreshed, begun + figures.decode_seconds, clock),
        index=index,
        forwards=figures.forwards - figures.refresh_forwards,
    )


def _record_span(tracer: Tracer, root: Span, name: str, start: float, end: float, clock: _Clock, **counts: int) -> None:
    attributes = {f"psd.{key}": value for key, value in counts.items()}
    span = tracer.start_span(name, context=set_span_in_context(root), start_time=clock.at(start), attributes=attributes)
    span.end(clock.at(max(start, end)))
