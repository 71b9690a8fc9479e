"""Traces of finished requests, where somebody wants them. OpenTelemetry is an extra: only `server.otel` knows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from psd_core.errors import ConfigError
from server.generation import Generation


class Traces(Protocol):
    """Where traces go."""

    def record(self, generation: Generation, headers: Mapping[str, str], request_id: str) -> None:
        """Called once per request, when it is over. headers: of the request; a traceparent continues its trace."""

    def close(self) -> None:
        """Send what is left."""


class NoTraces:
    """For servers that send none."""

    def record(self, generation: Generation, headers: Mapping[str, str], request_id: str) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


def make_traces(endpoint: str | None) -> Traces:
    """Traces to an OTLP endpoint over HTTP, or none. ConfigError if the extra is not installed."""
    if endpoint is None:
        return NoTraces()
    try:
        from server.otel import OtelTraces, otlp_provider
    except ImportError as error:
        message = f"--otlp-endpoint needs the extra: pip install 'psd-server[otel]' ({error.name} is missing)"
        raise ConfigError("otlp_endpoint", message) from None
    return OtelTraces(otlp_provider(endpoint))
