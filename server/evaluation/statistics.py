"""Intervals and areas, pure. All intervals are of 95 %."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal

Z: Final = 1.959964
AUP_ALPHA: Final = 3.0
AUP_MARGIN: Final = 0.05  # a point that loses more than this against the first one is left out

Verdict = Literal["no", "yes", "open"]


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and where the truth may lie."""

    value: float
    low: float
    high: float


def wilson(num_right: int, num_all: int) -> Interval:
    """Of a share (Wilson 1927)."""
    share = num_right / num_all
    centre = share + Z * Z / (2 * num_all)
    spread = Z * math.sqrt(share * (1 - share) / num_all + Z * Z / (4 * num_all * num_all))
    scale = 1 + Z * Z / num_all
    # Rounding may put a bound past the share itself where that is 0 or 1.
    low, high = max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)
    return Interval(share, min(share, low), max(share, high))


def paired_difference(ours: Sequence[bool], theirs: Sequence[bool]) -> Interval:
    """Of two shares over the same problems, ours minus theirs (Agresti and Min 2005: half a problem in each corner).

    Only problems where the two differ tell anything, as in McNemar's test; so the interval is far narrower than that of
    two separate samples.
    """
    gained = sum(one and not other for one, other in zip(ours, theirs, strict=True))
    lost = sum(other and not one for one, other in zip(ours, theirs, strict=True))
    num_all = len(ours)
    value = (gained - lost) / num_all
    b, c, n = gained + 0.5, lost + 0.5, num_all + 2
    spread = Z * math.sqrt(b + c - (b - c) ** 2 / n) / n
    return Interval(value, min(value, (b - c) / n - spread), max(value, (b - c) / n + spread))


def mcnemar(ours: Sequence[bool], theirs: Sequence[bool]) -> float:
    """Two-sided probability of a difference at least as large if both were equally good (McNemar's exact test)."""
    gained = sum(one and not other for one, other in zip(ours, theirs, strict=True))
    lost = sum(other and not one for one, other in zip(ours, theirs, strict=True))
    total, least = gained + lost, min(gained, lost)
    tail = sum(math.comb(total, k) for k in range(least + 1)) / 2**total if total else 1.0
    return min(1.0, 2 * tail)


def loses_more_than(difference: Interval, margin: float) -> Verdict:
    """Whether accuracy falls by more than `margin`: yes or no if the whole interval says so, else open."""
    if difference.high < -margin:
        return "yes"
    return "no" if difference.low >= -margin else "open"


def aup(points: Iterable[tuple[float, float]], best_accuracy: float) -> float:
    """Accuracy under parallelism of one decoder's points (tokens per forward, accuracy in [0, 1]), in percent × TPF.

    The weighted area under the curve as the d3LLM authors define it (arXiv 2601.07568), α = 3:
    ρ₁y₁ + Σ (ρᵢ − ρᵢ₋₁)(yᵢW(yᵢ) + yᵢ₋₁W(yᵢ₋₁)) / 2, W(y) = min(exp(−α(1 − y/y_max)), 1), over the points in order
    of ρ whose y is at most 5 points below that of the first. best_accuracy: y_max, the highest over all decoders.
    """
    ordered = sorted(points)
    if not ordered or best_accuracy <= 0:
        return 0.0
    first_tpf, first_accuracy = ordered[0]
    kept = [(tpf, y) for tpf, y in ordered if y >= first_accuracy - AUP_MARGIN]
    weighted = [(tpf, y * min(1.0, math.exp(-AUP_ALPHA * (1 - y / best_accuracy)))) for tpf, y in kept]
    area = first_tpf * first_accuracy
    for (tpf, value), (next_tpf, next_value) in pairwise(weighted):
        area += (next_tpf - tpf) * (value + next_value) / 2
    return 100 * area
