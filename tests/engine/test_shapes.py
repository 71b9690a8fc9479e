"""Rows that are computed for a round number's sake change nothing, and few different numbers of rows remain."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from psd_core.config import DecoderConfig
from psd_core.models.layers import DiffusionDecoder
from psd_core.models.shapes import has_kernels_per_shape, pad_rows, rounded
from psd_core.models.spec import ExpertsSpec
from psd_core.request import Request
from tests.engine.drive import Driver
from tests.engine.tiny import tiny_model, tiny_spec

EXPERTS = ExpertsSpec(4, 2, 24, 8, "softmax", True, 1.0, False, 1, 1, 0)


class CountingRows(TorchFunctionMode):
    """Notes how many rows every linear product got."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: set[int] = set()

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is F.linear:
            self.rows.add(args[0].shape[0])
        return func(*args, **(kwargs or {}))


def test_rounding_never_falls_short_and_leaves_few_sizes() -> None:
    sizes = [rounded(count) for count in range(1, 4097)]
    assert all(count <= size <= max(count + 15, count * 17 / 16) for count, size in enumerate(sizes, 1))
    assert sizes == sorted(sizes)
    assert len(set(sizes)) == 80
    assert [rounded(count) for count in (1, 16, 17, 256, 257, 513, 1025)] == [16, 16, 32, 256, 272, 544, 1088]


def test_padding_is_zeros_behind() -> None:
    rows = pad_rows(torch.ones(17, 2, 3))
    assert rows.shape == (32, 2, 3)
    assert rows[:17].eq(1).all()
    assert rows[17:].eq(0).all()


def requests(seed: int) -> list[Request]:
    rng = random.Random(seed)
    decoders = [DecoderConfig(policy="greedy", block_length=8, cache=cache) for cache in ("none", "prefix", "dual")]
    return [
        Request(f"r{index}", tuple(rng.choices(range(3, 20), k=rng.randint(1, 60))), 16, decoders[index % 3])
        for index in range(12)
    ]


def decode(model: DiffusionDecoder) -> list[list[int]]:
    driver = Driver(model)
    for request in requests(1):
        driver.add(request)
    while driver.engine.has_work():
        driver.step()
    return [outcome.token_ids for outcome in driver.outcomes.values()]


@pytest.mark.parametrize("experts", [None, EXPERTS])
def test_padded_forwards_decode_the_same_tokens(experts: ExpertsSpec | None) -> None:
    spec = replace(tiny_spec(), experts=experts)
    plain, padded = tiny_model(3, spec), tiny_model(3, spec)
    assert not plain.pads_rows, "float32"
    padded.pads_rows = True
    assert decode(plain) == decode(padded)


@pytest.mark.parametrize("experts", [None, EXPERTS])
def test_in_bfloat16_every_product_has_a_round_number_of_rows(experts: ExpertsSpec | None) -> None:
    plain = tiny_model(3, replace(tiny_spec(), experts=experts))
    model = DiffusionDecoder(plain.spec, torch.bfloat16, torch.device("cpu"))
    model.load_state_dict(plain.state_dict())
    assert model.pads_rows
    with CountingRows() as counting:
        decode(model.eval())
    # a router computes in float32, so its tokens are those of the padded forward too
    assert counting.rows == {rounded(rows) for rows in counting.rows}


def test_float32_and_gpus_are_left_alone() -> None:
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert has_kernels_per_shape(torch.bfloat16, cpu)
    assert not has_kernels_per_shape(torch.float32, cpu)
    assert not has_kernels_per_shape(torch.bfloat16, gpu)
