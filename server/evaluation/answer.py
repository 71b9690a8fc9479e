"""One answer of one cell, and what it cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from server.body import JsonObject
from server.evaluation.cell import NAMES


@dataclass(frozen=True, slots=True)
class Cost:
    """What one answer took, as the `psd` object of a response tells it; psd_core.events.Figures has the meanings.

    tokens   of the answer, the stop token included
    """

    tokens: int
    forwards: int
    refresh_forwards: int
    rows: int
    drafted_tokens: int
    accepted_tokens: int
    accepted_depths: tuple[int, ...]
    spatial_deciles: tuple[int, ...]
    temporal_deciles: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Reply:
    """What a source says to one request.

    settings   decoder settings that were used, as far as the source tells them
    """

    text: str
    token_ids: tuple[int, ...]
    reason: str
    cost: Cost
    settings: JsonObject


@dataclass(frozen=True, slots=True)
class Answer:
    """A reply in its place.

    problem      key of the problem
    at_seconds   decoding time of the cell until this answer was complete, over all sessions of the run
    """

    cell: str
    problem: str
    reply: Reply
    at_seconds: float


_COUNTS = ("forwards", "refresh_forwards", "rows", "drafted_tokens", "accepted_tokens")
_HISTOGRAMS = ("accepted_depths", "spatial_deciles", "temporal_deciles")


def read_cost(psd: Mapping[str, object], num_tokens: int) -> Cost:
    """The cost from a response's `psd` object. ValueError names what is missing."""
    forwards, refresh_forwards, rows, drafted, accepted = (_count(psd, name) for name in _COUNTS)
    depths, spatial, temporal = (_histogram(psd, name) for name in _HISTOGRAMS)
    return Cost(num_tokens, forwards, refresh_forwards, rows, drafted, accepted, depths, spatial, temporal)


def read_settings(psd: Mapping[str, object]) -> JsonObject:
    """The decoder settings in a response's `psd` object."""
    return {name: psd[name] for name in NAMES if name in psd}


def _count(psd: Mapping[str, object], name: str) -> int:
    value = psd.get(name)
    if not isinstance(value, int):
        raise ValueError(f"the answer's psd object has no {name}: the server is none of PSD, or too old")
    return value


def _histogram(psd: Mapping[str, object], name: str) -> tuple[int, ...]:
    value = psd.get(name)
    if not isinstance(value, list) or not all(isinstance(entry, int) for entry in value):
        raise ValueError(f"the answer's psd object has no {name}: the server is none of PSD, or too old")
    return tuple(value)
