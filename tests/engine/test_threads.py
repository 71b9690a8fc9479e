"""How many cores a forward takes: no more than measurably help."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pytest
import torch

from psd_core.models.spec import ModelSpec
from psd_core.models.threads import candidates, faster_threads, measure_threads
from tests.engine.tiny import tiny_spec


@pytest.mark.parametrize(
    ("seconds", "chosen"),
    [
        ({1: 1.0, 2: 0.95, 4: 0.92}, 1),  # not worth a core
        ({1: 1.0, 2: 1.7, 4: 3.0}, 1),  # waiting asleep costs more than it saves
        ({1: 1.0, 2: 0.55, 4: 0.53}, 2),
        ({1: 1.0, 2: 1.1, 4: 0.6}, 4),
        ({1: 1.0, 2: 0.5, 4: 0.25}, 4),
    ],
)
def test_the_fewest_are_taken_that_no_larger_number_beats(seconds: Mapping[int, float], chosen: int) -> None:
    def probe(spec: ModelSpec, dtype: torch.dtype, numbers: Sequence[int]) -> Mapping[int, float]:
        assert (spec.num_layers, dtype, list(numbers)) == (1, torch.float32, [1, 2, 4])
        return seconds

    assert faster_threads(tiny_spec(), torch.float32, 4, probe) == chosen


def test_every_doubling_is_tried_and_the_most() -> None:
    assert candidates(1) == [1]
    assert candidates(2) == [1, 2]
    assert candidates(6) == [1, 2, 4, 6]
    assert candidates(8) == [1, 2, 4, 8]


def test_measuring_leaves_the_number_as_it_was() -> None:
    before = torch.get_num_threads()
    seconds = measure_threads(tiny_spec(), torch.float32, [1, 2, 3])
    assert torch.get_num_threads() == before
    assert sorted(seconds) == [1, 2, 3]
    assert all(0 < taken < math.inf for taken in seconds.values())


def test_one_core_leaves_nothing_to_measure() -> None:
    def probe(spec: ModelSpec, dtype: torch.dtype, numbers: Sequence[int]) -> Mapping[int, float]:
        raise AssertionError("measured")

    assert faster_threads(tiny_spec(), torch.float32, 1, probe) == 1
