"""What the speed benchmarks share: models to time, problems to solve, medians of alternating runs, the machine."""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import torch
from tokenizers import Tokenizer

from benchmarks.decoding import cpu_name
from demo_model.problem import Problem
from demo_model.tasks import problems
from psd_core.config import QuantizationName
from psd_core.models.layers import DiffusionDecoder
from psd_core.models.loader import load_model
from psd_core.models.parameters import SCALE_SUFFIX
from psd_core.models.quantized import LARGEST
from psd_core.models.spec import ModelSpec

Clock = Callable[[], float]
CLOCKS: Mapping[str, Clock] = {"wall": time.perf_counter, "cpu": time.process_time}
CLOCK_HELP = "cpu: the process's own seconds, which other work on the machine does not lengthen; with one thread only"


@dataclass(frozen=True, slots=True)
class Task:
    """Held-out problems of the built-in model as token ids."""

    model: DiffusionDecoder
    tokenizer: Tokenizer
    problems: list[Problem]
    prompts: list[tuple[int, ...]]

    @property
    def stop_ids(self) -> frozenset[int]:
        return frozenset(self.model.spec.eos_ids)


def load_task(path: Path, dtype: str, count: int, seed: int = 2026) -> Task:
    """A checkpoint with so many problems, the tasks in turn."""
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    drawn = problems("held-out", count, seed)
    prompts = [tuple(tokenizer.encode(problem.prompt, add_special_tokens=False).ids) for problem in drawn]
    return Task(load_model(path, dtype=dtype), tokenizer, drawn, prompts)


def random_llada(
    hidden_size: int = 1024, num_layers: int = 12, vocab_size: int = 32_768, *, block_length: int | None = None
) -> ModelSpec:
    """A LLaDA shape; by default 218 million parameters."""
    return ModelSpec(
        architecture="LLaDAModelLM",
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=hidden_size // 64,
        num_kv_heads=hidden_size // 64,
        head_dim=64,
        mlp_size=hidden_size * 11 // 4,
        rope_theta=500_000.0,
        norm_eps=1e-5,
        max_positions=16_384,
        has_tied_head=False,
        has_qkv_bias=False,
        mask_id=vocab_size - 1,
        eos_ids=(vocab_size - 2,),
        block_length=block_length,
    )


def random_model(
    spec: ModelSpec,
    dtype: torch.dtype,
    device: torch.device | None = None,
    quantization: QuantizationName = "none",
) -> DiffusionDecoder:
    """Random weights, made on the device (None: the CPU); what such a model says means nothing, what it costs does."""
    device = device or torch.device("cpu")
    model = DiffusionDecoder(spec, dtype, device, quantization=quantization)
    generator = torch.Generator(device).manual_seed(0)
    parameters = dict(model.named_parameters())
    for name, parameter in parameters.items():
        if name.endswith("norm.weight"):
            parameter.fill_(1.0)
        elif parameter.dtype == torch.int8:
            parameter.random_(-LARGEST, LARGEST + 1, generator=generator)
            # Uniform integers up to 127 have a standard deviation of 127 ÷ √3.
            parameters[name + SCALE_SUFFIX].fill_(math.sqrt(3 / parameter.shape[-1]) / LARGEST)
        elif not name.endswith(SCALE_SUFFIX):
            parameter.normal_(0.0, 1 / math.sqrt(parameter.shape[-1]), generator=generator)
    return model.eval()


def alternate(calls: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Every call's results, the calls taking turns and the order turning, so that the machine's moods hit all alike."""
    names = list(calls)
    found: dict[str, list[float]] = {name: [] for name in names}
    for index in range(rounds):
        shift = index % len(names)
        for name in names[shift:] + names[:shift]:
            found[name].append(calls[name]())
    return found


def seconds_of(call: Callable[[], object], clock: Clock) -> float:
    """How long a call takes."""
    started = clock()
    call()
    return clock() - started


def median_ratio(above: Sequence[float], below: Sequence[float]) -> float:
    """Median over rounds of one measurement ÷ the other of the same round."""
    return statistics.median(one / other for one, other in zip(above, below, strict=True))


def exponent(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """The power that fits seconds = c · size^power best: the slope of the logarithms."""
    return statistics.linear_regression([math.log(size) for size in sizes], [math.log(s) for s in seconds]).slope


def add_machine_flags(parser: argparse.ArgumentParser) -> None:
    """Threads, number type and clock."""
    parser.add_argument("--threads", type=int, default=2, help="torch's threads")
    parser.add_argument("--clock", choices=tuple(CLOCKS), default="wall", help=CLOCK_HELP)
    parser.add_argument("--dtype", default="auto", help="of the weights, as for psd serve")


def machine(model: DiffusionDecoder, clock: str) -> str:
    """Where, how and when, for the line above a table."""
    return machine_line(model.dtype, clock)


def machine_line(dtype: torch.dtype, clock: str, device_name: str | None = None) -> str:
    """The same without a model. device_name: of a GPU; absent: the processor's."""
    name, threads = str(dtype).removeprefix("torch."), torch.get_num_threads()
    where = device_name or cpu_name()
    return f"{name}, {threads} thread{'s' * (threads > 1)}, {clock} seconds, {where}, {date.today()}"
