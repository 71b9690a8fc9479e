"""A step reads from the device once, at its end: anywhere else the host would stand still while a GPU works."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from psd_core.config import DecoderConfig, EngineConfig
from psd_core.graphs import EagerRecorder, Recorder
from psd_core.request import Request, SamplingParams
from tests.engine.drive import Driver
from tests.engine.tiny import tiny_model

# What on a GPU needs a number of the device before the host can go on. On a CPU they look the same to torch's modes.
READS: Mapping[object, str] = {
    getattr(owner, name): name
    for owner in (torch, torch.Tensor)
    for name in (
        *("cpu", "item", "tolist", "__bool__", "__int__", "__float__", "__index__", "__array__", "nonzero"),
        *("argwhere", "masked_select", "unique", "bincount", "equal", "is_nonzero", "repeat_interleave"),
    )
    if hasattr(owner, name)
}
INDEXING = (torch.Tensor.__getitem__, torch.Tensor.__setitem__)


class Readbacks(TorchFunctionMode):
    """Notes the reads of whatever runs inside it."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[str] = []

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Iterable[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        if func in READS:
            self.reads.append(READS[func])
        elif func in INDEXING:
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            if any(isinstance(part, Tensor) and part.dtype == torch.bool for part in index):
                self.reads.append("a mask as an index")
        return func(*args, **(kwargs or {}))


def requests() -> list[Request]:
    """Everything that a request can ask of a step."""
    plain = Request("plain", (3, 4, 5), 16, DecoderConfig(policy="greedy", block_length=8))
    sampled = SamplingParams(
        temperature=1.0, top_p=0.9, top_k=7, min_p=0.05, seed=1, repetition_penalty=1.2, logit_bias=((7, 1.5),)
    )
    return [
        plain,
        replace(plain, request_id="sampled", sampling=sampled, num_top_logprobs=3),
        replace(plain, request_id="plainly", sampling=SamplingParams(temperature=0.7, seed=2)),
        replace(plain, request_id="scored", score_prompt=True, num_top_logprobs=2),
        replace(plain, request_id="stops", stop_ids=frozenset({1, 2}), min_tokens=5),
        replace(plain, request_id="entropy", decoder=replace(plain.decoder, policy="entropy", cache="dual")),
        replace(plain, request_id="margin", decoder=replace(plain.decoder, policy="margin", cache="prefix")),
        replace(plain, request_id="edited", decoder=replace(plain.decoder, edit_threshold=0.5, max_edit_passes=2)),
    ]


@pytest.mark.parametrize("recorder", [None, EagerRecorder()])
def test_a_step_reads_from_the_device_once(recorder: Recorder | None) -> None:
    config = EngineConfig(max_num_batched_tokens=4096, max_logit_rows=20)
    driver = Driver(tiny_model(0), config, recorder)
    for request in requests():
        driver.add(request)
    steps = 0
    while driver.engine.has_work():
        with Readbacks() as seen:
            driver.step()
        assert seen.reads == ["cpu"]
        steps += 1
    assert steps > 10


def test_reads_do_not_go_unnoticed() -> None:
    values = torch.arange(4)
    with Readbacks() as seen:
        assert bool(values.any())
        values[values > 2] = 0
        values.nonzero()
        assert int(values[1]) == 1
        assert values.tolist() == values.cpu().tolist()
    assert seen.reads == ["__bool__", "a mask as an index", "nonzero", "__int__", "tolist", "cpu", "tolist"]
