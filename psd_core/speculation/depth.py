"""How many drafts each sequence of a forward should carry: the most denoising steps per second, over all of them. Pure.

Under `exact` the states on a request's way are given, so steps per second are tokens per second; a draft that holds
saves the forward that its state would have needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from psd_core.block import IntArray
from psd_core.speculation.steptime import Work


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
    outcome's own rate is the next price, and rises until nobody changes.
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
    depths: IntArray = np.zeros(len(offers), np.int64)
    while True:
        total = base_seconds + seconds[everyone, depths].sum()
        rate = (base_steps + steps[everyone, depths].sum()) / max(total, np.finfo(np.float64).tiny)
        chosen = np.argmax(steps - rate * seconds, axis=1)
        surplus = (steps - rate * seconds)[everyone, chosen].sum()
        if surplus <= (steps - rate * seconds)[everyone, depths].sum():
            return [int(depth) for depth in depths]
        depths = chosen
