"""What the samples of a level say: spreads of latencies, throughput, errors by kind. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from server.bench.load import Load
from server.bench.target import Sample

LAG_SECONDS = 0.01  # of this process's own event loop, beyond which its measurements are in doubt


@dataclass(frozen=True, slots=True)
class Spread:
    """Some values: how many, their mean and percentiles, interpolated linearly."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float


@dataclass(frozen=True, slots=True)
class LevelFigures:
    """One level of load. Times in seconds; None where nothing could be measured.

    seconds                 from the beginning to the last answer's end
    first_text              until the first chunk with text
    inter_chunk             between successive chunks with text, over all requests
    inter_token             the same ÷ the tokens of the later chunk, where the server counts them in every chunk
    per_output_token        per request: (total - first_text) ÷ (output tokens - 1), of answers in more than one chunk
    total                   until the end of the answer
    tokens_per_forward      per request, where the server tells its forwards
    mean_tokens_per_forward all output tokens ÷ all forwards
    loop_lag_p99            how late this process's own timers were
    """

    load: Load
    seconds: float
    num_begun: int
    num_answered: int
    errors: Mapping[str, int]
    is_interrupted: bool
    first_text: Spread | None
    inter_chunk: Spread | None
    inter_token: Spread | None
    per_output_token: Spread | None
    total: Spread | None
    prompt_tokens: Spread | None
    output_tokens: Spread | None
    tokens_per_forward: Spread | None
    mean_tokens_per_forward: float | None
    requests_per_second: float
    output_tokens_per_second: float | None
    loop_lag_p99: float
    notes: tuple[str, ...]


def spread(values: Iterable[float]) -> Spread | None:
    """None of no values."""
    array = np.asarray(list(values), np.float64)
    if not array.size:
        return None
    p50, p90, p99 = np.percentile(array, (50, 90, 99))
    return Spread(int(array.size), float(array.mean()), float(p50), float(p90), float(p99))


def figures_of(
    load: Load, samples: Sequence[Sample], num_begun: int, lags: Sequence[float], *, is_interrupted: bool
) -> LevelFigures:
    """The figures of one level; requests that failed count as errors and nowhere else."""
    answered = [sample for sample in samples if sample.error is None]
    seconds = max((sample.due + sample.total for sample in samples), default=0.0)
    counted = [sample for sample in answered if sample.output_tokens is not None]
    num_tokens = sum(sample.output_tokens or 0 for sample in counted)
    forwards = sum(sample.forwards or 0 for sample in counted)
    lag = spread(lags)
    lag_p99 = 0.0 if lag is None else lag.p99
    return LevelFigures(
        load=load,
        seconds=seconds,
        num_begun=num_begun,
        num_answered=len(answered),
        errors=dict(Counter(sample.error for sample in samples if sample.error is not None).most_common()),
        is_interrupted=is_interrupted,
        first_text=spread(sample.first_text for sample in answered if sample.first_text is not None),
        inter_chunk=spread(gap for sample in answered for gap in sample.gaps),
        inter_token=spread(_token_gaps(answered)),
        per_output_token=spread(
            (sample.total - sample.first_text) / (sample.output_tokens - 1)
            for sample in answered
            if sample.output_tokens is not None and sample.output_tokens > 1
            if sample.first_text is not None and sample.gaps
        ),
        total=spread(sample.total for sample in answered),
        prompt_tokens=spread(sample.prompt_tokens for sample in answered if sample.prompt_tokens is not None),
        output_tokens=spread(sample.output_tokens for sample in counted if sample.output_tokens is not None),
        tokens_per_forward=spread(
            (sample.output_tokens or 0) / sample.forwards for sample in counted if sample.forwards
        ),
        mean_tokens_per_forward=num_tokens / forwards if forwards else None,
        requests_per_second=len(answered) / seconds if seconds else 0.0,
        output_tokens_per_second=num_tokens / seconds if counted and seconds else None,
        loop_lag_p99=lag_p99,
        notes=tuple(_notes(answered, num_begun - len(samples), lag_p99)),
    )


def _token_gaps(answered: Sequence[Sample]) -> list[float]:
    """Gap ÷ tokens of every chunk that is known to hold some."""
    return [
        gap / tokens
        for sample in answered
        if sample.gap_tokens is not None
        for gap, tokens in zip(sample.gaps, sample.gap_tokens, strict=True)
        if tokens > 0
    ]


def _notes(answered: Sequence[Sample], num_unfinished: int, lag_p99: float) -> list[str]:
    """What a reader must know before comparing."""
    notes = []
    if num_unfinished:
        notes.append(f"{num_unfinished} requests were open when the run was interrupted: left out")
    uncounted = sum(sample.output_tokens is None for sample in answered)
    if uncounted:
        notes.append(
            f"the server told no usage of {uncounted} of {len(answered)} answers: their tokens are not counted"
        )
    silent = sum(sample.first_text is None for sample in answered)
    if silent:
        notes.append(f"{silent} of {len(answered)} answers had no text: they have no time to first text")
    if any(sample.gaps and sample.gap_tokens is None for sample in answered):
        notes.append("the server does not count tokens per chunk: no inter-token latency of chunks")
    if lag_p99 > LAG_SECONDS:
        notes.append(
            f"this process was late by {lag_p99 * 1000:.0f} ms (p99) itself: too busy a machine to measure from"
        )
    return notes
