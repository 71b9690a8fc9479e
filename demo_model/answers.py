"""Decodes many prompts through one engine and sums up what that took."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from psd_core.config import DecoderConfig
from psd_core.engine import Engine
from psd_core.events import Figures
from psd_core.request import Request


@dataclass(frozen=True, slots=True)
class Answers:
    """Generated ids per prompt, in order, and the figures of every request."""

    token_ids: tuple[tuple[int, ...], ...]
    figures: tuple[Figures, ...]
    seconds: float  # from the first request to the last answer

    @property
    def tokens(self) -> int:
        return sum(one.generated_tokens for one in self.figures)

    @property
    def forwards(self) -> int:
        """Summed over requests: a forward that two share counts for both."""
        return sum(one.forwards for one in self.figures)

    @property
    def refresh_forwards(self) -> int:
        return sum(one.refresh_forwards for one in self.figures)

    @property
    def rows(self) -> int:
        return sum(one.rows for one in self.figures)


def decode_all(
    engine: Engine, prompts: Sequence[Sequence[int]], decoder: DecoderConfig, max_tokens: int, stop_ids: frozenset[int]
) -> Answers:
    """Answer all prompts; the engine's limits say how many share a forward."""
    token_ids: list[list[int]] = [[] for _ in prompts]
    figures: dict[int, Figures] = {}
    started = time.perf_counter()
    for index, prompt in enumerate(prompts):
        engine.add(Request(str(index), tuple(prompt), max_tokens, decoder, stop_ids=stop_ids))
    while engine.has_work():
        output = engine.step()
        for event in output.tokens:
            token_ids[int(event.request_id)] += event.token_ids
        for finished in output.finished:
            figures[int(finished.request_id)] = finished.figures
    seconds = time.perf_counter() - started
    return Answers(
        tuple(tuple(ids) for ids in token_ids), tuple(figures[index] for index in range(len(prompts))), seconds
    )
