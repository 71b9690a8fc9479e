"""Who answers the requests of a cell: an engine in this process, or a server."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Protocol

from server.body import JsonObject
from server.evaluation.answer import Reply


class Source(Protocol):
    """Answers many requests at once."""

    @property
    def model(self) -> str:
        """Name to put into a body."""

    @property
    def facts(self) -> JsonObject:
        """What a result depends on: model, device, and how many requests share a forward."""

    def replies(self, path: str, bodies: Mapping[str, JsonObject]) -> Generator[tuple[str, Reply], None, None]:
        """(name of the body, its reply), as they complete. SourceError if one fails; closing it cancels the rest."""
