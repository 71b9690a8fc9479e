"""How many drafts each sequence of a forward should carry: the most denoising steps per second, over all of them. Pure.

Under `exact` the states on a request's way are given, so steps per second are tokens per second; a draft that holds
saves the forward that its state would have needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from psd_core.block import IntArray
from psd_core.speculation.steptime import Work

SHORTEST_SECONDS: Final = 1e-9  # that a forward is taken to last: prices may be unknown


@dataclass(frozen=True, slots=True, eq=False)
class Offer:
    """What a sequence's drafts promise and cost. Entry d is for d drafts, so the first one is 0.

    steps     denoising steps expected beyond the sequence's own, [n + 1], not falling
    seconds   by which they prolong the forward, [n + 1], not falling
    """

    steps: Work
    seconds: Work

    def __post_init__(self) -> None:
        assert self.steps.shape == self.seconds.shape


def choose_depths(base_steps: float, base_seconds: float, offers: Sequence[Offer]) -> list[int]:
    """Per offer its number of drafts, so that all steps ÷ all seconds is greatest; of equals the least.

    base_steps, base_seconds   of the forward without any of the offers

    Dinkelbach's method for ratios: at a given price of a second in steps, every sequence chooses for itself; the
    outcome's own rate is the next price, and rises until nobody changes. Where choices are worth the same, rounding
    decides between them, so that nobody might never come to rest; but a rate that must rise ends.
    """
    if not offers:
        return []
    longest = max(offer.steps.size for offer in offers)
    steps = np.full((len(offers), longest), -np.inf)
    seconds = np.zeros((len(offers), longest))
    for index, offer in enumerate(offers):
        steps[index, : offer.steps.size] = offer.steps
        seconds[index, : offer.seconds.size] = offer.seconds
    everyone = np.arange(len(offers))

    def rate_of(depths: IntArray) -> float:
        total = base_seconds + float(seconds[everyone, depths].sum())
        return (base_steps + float(steps[everyone, depths].sum())) / max(total, SHORTEST_SECONDS)

    depths: IntArray = np.zeros(len(offers), np.int64)
    rate = rate_of(depths)
    while True:
        chosen = np.argmax(steps - rate * seconds, axis=1)
        if not (next_rate := rate_of(chosen)) > rate:
            return [int(depth) for depth in depths]
        depths, rate = chosen, next_rate
