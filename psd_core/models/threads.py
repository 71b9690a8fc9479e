"""How many of a CPU's cores a model's forwards use: as many as measurably help.

OpenMP's threads meet some dozen times per layer. Where they wait asleep, each meeting costs tens of microseconds, so
that a small model is faster on one core than on two, and leaves the other cores to whoever needs them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import torch

from psd_core.models.memory import free_bytes, weight_bytes
from psd_core.models.probe import PROBE_SECONDS, layer_call, one_layer
from psd_core.models.spec import ModelSpec

logger = logging.getLogger(__name__)

MIN_GAIN: Final = 1.1  # what the next larger number must save to be taken: a core has other uses
PROBE_ROUNDS: Final = 15
MIN_ROUNDS: Final = 3

# Seconds of a forward through a layer, by the number of threads.
Probe = Callable[[ModelSpec, torch.dtype, Sequence[int]], Mapping[int, float]]


def faster_threads(spec: ModelSpec, dtype: torch.dtype, most: int, probe: Probe | None = None) -> int:
    """The fewest threads, at most `most`, of which no larger number makes a layer of `spec` a tenth faster.

    probe   seconds by number of threads; by default those of this machine
    """
    layer = one_layer(spec)
    if most <= 1 or weight_bytes(layer, dtype) > free_bytes(torch.device("cpu")):
        return most
    seconds = (probe or measure_threads)(layer, dtype, candidates(most))
    least = min(seconds.values())
    chosen = min(number for number, taken in seconds.items() if taken <= MIN_GAIN * least)
    logger.info(
        "a layer takes %s: the threads are %d (--threads sets it)",
        ", ".join(f"{1e3 * taken:.2f} ms with {number}" for number, taken in seconds.items()),
        chosen,
    )
    return chosen


def candidates(most: int) -> list[int]:
    """1, 2, 4, … and `most` itself."""
    return sorted({most, *(1 << power for power in range(most.bit_length()))})


@torch.inference_mode()
def measure_threads(spec: ModelSpec, dtype: torch.dtype, numbers: Sequence[int]) -> dict[int, float]:
    """Least seconds that one layer of `spec` takes for 128 tokens, by number of threads. They take turns.

    Seconds that pass, unlike those a number type is chosen by: what threads cost is waiting.
    """
    call = layer_call(spec, dtype)
    before = torch.get_num_threads()
    least = dict.fromkeys(numbers, float("inf"))
    began = time.perf_counter()
    try:
        for index in range(1 + PROBE_ROUNDS):  # the first round prepares kernels and does not count
            for number in numbers:
                torch.set_num_threads(number)
                started = time.perf_counter()
                call()
                if index:
                    least[number] = min(least[number], time.perf_counter() - started)
            if index >= MIN_ROUNDS and time.perf_counter() - began > PROBE_SECONDS:
                break
    finally:
        torch.set_num_threads(before)
    return least
