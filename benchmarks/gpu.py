"""What waits for a GPU, in one run of ten minutes at most: are the fast paths right, and what are they worth?

    python -m benchmarks.gpu --json gpu.json             LLaDA-8B's shape with random weights in bfloat16
    python -m benchmarks.gpu --shape small               2.7 GB of weights, for smaller cards
    python -m benchmarks.gpu --device cpu --shape tiny   the script itself, in seconds

Each fast path beside its plain twin: attention, recorded forwards (CUDA graphs), compiled layers, products with 8-bit
weights. The copy bandwidth of the device; and for each way to run, with one draft in a step holding on average
(`benchmarks.traced`): a denoising step beside the time that reading the weights takes at that bandwidth, tokens per
second and peak memory.
Exit status: 0 all checks hold, 1 some do not. docs/gpu.md says what the columns mean.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from functools import partial
from pathlib import Path
from typing import Final

import torch

from benchmarks.decoding import cpu_name
from benchmarks.gpu_checks import Check, check_attention, check_forwards, check_graphs, check_products
from benchmarks.measuring import random_llada, random_model
from benchmarks.traced import TRACE, TracedEngine
from psd_core.config import DecoderConfig
from psd_core.graphs import EagerRecorder, Recorder, cuda_recorder
from psd_core.models.compiling import compile_layers
from psd_core.models.dtypes import DTYPES
from psd_core.models.layers import DiffusionDecoder
from psd_core.models.loader import resolve_device
from psd_core.models.published import published_spec
from psd_core.models.spec import ModelSpec
from psd_core.request import Request

GIB: Final = 1 << 30
COPIES: Final = 12


@dataclass(frozen=True, slots=True)
class Scale:
    """How much of everything is measured."""

    spec: ModelSpec
    num_prompt: int
    max_tokens: int
    block_length: int
    batches: tuple[tuple[int, int], ...]  # (requests, drafts)
    copy_bytes: int


@dataclass(frozen=True, slots=True)
class Row:
    """One way to run under one load. Seconds are medians; ratios are to reading all weights once."""

    mode: str
    requests: int
    drafts: int
    step_seconds: float
    ratio: float  # to the time that reading the mode's own weights takes
    other_seconds: float  # of steps with a refresh
    tokens_per_second: float
    peak_bytes: int


@dataclass(slots=True)
class Report:
    """What was found so far."""

    where: str
    model: str
    checks: list[Check] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    bandwidth: float = 0.0  # bytes read and written per second
    weight_bytes: int = 0

    @property
    def holds(self) -> bool:
        """Whether every check was made, and held."""
        return bool(self.checks) and all(check.holds for check in self.checks) and not self.notes

    def show(self) -> str:
        """Markdown."""
        checks = [
            f"| {one.name} | {one.difference:.1e} | {one.tolerance:.0e} "
            f"| {'' if one.same_tokens is None else f'{one.same_tokens:.3f}'} | {'yes' if one.holds else '**no**'} |"
            for one in self.checks
        ]
        rows = [
            f"| {row.mode} | {row.requests} | {row.drafts} | {1e3 * row.step_seconds:.2f} | {row.ratio:.2f} "
            f"| {1e3 * row.other_seconds:.2f} | {row.tokens_per_second:.0f} | {row.peak_bytes / GIB:.2f} |"
            for row in self.rows
        ]
        floor = self.weight_bytes / self.bandwidth if self.bandwidth else math.nan
        return "\n".join(
            [
                f"{self.model}, {self.where}, trace {TRACE}.",
                f"Copy bandwidth {self.bandwidth / 1e9:.0f} GB/s (read + written); weights read per forward "
                f"{self.weight_bytes / 1e9:.2f} GB, which takes {1e3 * floor:.2f} ms.",
                "",
                "| check | difference | tolerance | same tokens | holds |\n|---|---|---|---|---|",
                *checks,
                "",
                "| mode | requests | D | denoising step, ms | ÷ weights | step with a refresh, ms | tokens / s "
                "| peak, GiB |\n|---|---|---|---|---|---|---|---|",
                *rows,
                *(f"\n{note}" for note in self.notes),
            ]
        )


class Session:
    """One run of the script on one device. Owns the report and the model."""

    def __init__(self, scale: Scale, device: torch.device, dtype: torch.dtype, max_seconds: float) -> None:
        self.scale, self.device, self.dtype = scale, device, dtype
        self._deadline = time.monotonic() + max_seconds
        size = f"{scale.spec.num_parameters / 1e9:.2f} G parameters"
        self.report = Report(describe(device), f"random LLaDA, {size}, {str(dtype).removeprefix('torch.')}")
        self.model = random_model(scale.spec, dtype, device)
        self.report.weight_bytes = self._read_bytes = read_bytes(self.model)

    def quantize(self) -> None:
        """Go on with 8-bit weights, as random as the others."""
        del self.model  # there may not be room for both
        self.model = random_model(self.scale.spec, self.dtype, self.device, "int8")
        self._read_bytes = read_bytes(self.model)

    def recorder(self) -> Recorder:
        """CUDA graphs, or their twin on a CPU."""
        return cuda_recorder(self.model) if self.device.type == "cuda" else EagerRecorder()

    def check(self, name: str, checks: Callable[[], Iterable[Check]]) -> None:
        """Make checks; a failure is noted, and the run goes on."""
        self._attempt(name, lambda: self.report.checks.extend(checks()))

    def measure(self, mode: str, recorder: Callable[[], Recorder | None]) -> None:
        """All loads of the scale, one way; recorder: a new one for every load."""
        for requests, drafts in self.scale.batches:
            name = f"{mode}, {requests} requests, D = {drafts}"
            self._attempt(name, partial(self._add_row, mode, requests, drafts, recorder))

    def measure_bandwidth(self) -> None:
        """Copy from device memory to device memory; the best of some, read and written bytes together."""
        source = torch.zeros(self.scale.copy_bytes, dtype=torch.uint8, device=self.device)
        target = torch.empty_like(source)
        best = min(self._seconds(lambda: target.copy_(source)) for _ in range(COPIES))
        self.report.bandwidth = 2 * source.nbytes / best

    def _add_row(self, mode: str, num_requests: int, drafts: int, recorder: Callable[[], Recorder | None]) -> None:
        self.report.rows.append(self._row(mode, num_requests, drafts, recorder()))

    def _row(self, mode: str, num_requests: int, drafts: int, recorder: Recorder | None) -> Row:
        scale = self.scale
        decoder = DecoderConfig(
            policy="greedy", draft_depth=drafts, block_length=scale.block_length, cache="dual", acceptance="exact"
        )
        requests = [
            Request(str(index), tuple(range(2, 2 + scale.num_prompt)), scale.max_tokens, decoder)
            for index in range(num_requests)
        ]
        each = scale.num_prompt + scale.max_tokens + (1 + drafts) * (scale.block_length + 1)
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        engine = TracedEngine(self.model, num_requests, num_requests * each, recorder, TRACE)
        engine.run(requests)  # kernels are chosen and graphs recorded here
        times = engine.run(requests)
        step = statistics.median(times.denoise_seconds)
        return Row(
            mode,
            num_requests,
            drafts,
            step,
            step * self.report.bandwidth / self._read_bytes,
            statistics.median(times.other_seconds),
            times.tokens / times.seconds,
            self._peak_bytes(),
        )

    def _attempt(self, name: str, call: Callable[[], object]) -> None:
        if time.monotonic() > self._deadline:
            self.report.notes.append(f"Not made for want of time: {name}.")
            return
        try:
            call()
        except Exception as error:  # a report with a hole is worth more than none
            self.report.notes.append(f"Failed: {name}: {type(error).__name__}: {' '.join(str(error).split())[:400]}")
        print(f"{time.strftime('%H:%M:%S')} {name}", file=sys.stderr, flush=True)

    def _seconds(self, call: Callable[[], object]) -> float:
        self._wait()
        started = time.perf_counter()
        call()
        self._wait()
        return time.perf_counter() - started

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _peak_bytes(self) -> int:
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def scale_of(shape: str) -> Scale:
    """What a shape's name stands for."""
    match shape:
        case "llada-8b":
            spec = published_spec("LLaDA-8B")
            return Scale(spec, 256, 128, 32, ((1, 0), (1, 3), (8, 3), (32, 3)), GIB)
        case "small":
            spec = random_llada(2048, 24, 32_768)
            return Scale(spec, 256, 128, 32, ((1, 0), (1, 3), (8, 3), (32, 3)), GIB)
        case _:
            return Scale(random_llada(64, 2, 256), 16, 16, 8, ((1, 0), (1, 3), (3, 3)), 1 << 20)


def read_bytes(model: DiffusionDecoder) -> int:
    """Bytes of the weights that a forward reads: all but the embedding, of which it reads a few rows."""
    unread = 0 if model.spec.has_tied_head else model.embedding.nbytes
    return sum(parameter.nbytes for parameter in model.parameters()) - unread


def describe(device: torch.device) -> str:
    """Device, versions and day."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_name()
    return f"{name}, torch {torch.__version__}, CUDA {torch.version.cuda}, {date.today()}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N or cpu")
    parser.add_argument("--shape", choices=("llada-8b", "small", "tiny"), default="llada-8b")
    parser.add_argument("--dtype", choices=tuple(DTYPES), help="absent: bfloat16 on a GPU, float32 on a CPU")
    parser.add_argument("--compile", choices=("yes", "no"), default="yes", help="no leaves torch.compile out")
    parser.add_argument("--max-seconds", type=float, default=540.0, help="after which nothing new is begun")
    parser.add_argument("--json", type=Path, help="write everything there, too")
    given = parser.parse_args(arguments)
    device = resolve_device(given.device)
    dtype = DTYPES[given.dtype or ("bfloat16" if device.type == "cuda" else "float32")]
    session = Session(scale_of(given.shape), device, dtype, given.max_seconds)
    session.measure_bandwidth()
    for checked in dict.fromkeys((torch.float32, dtype)):
        session.check(f"attention in {checked}", partial(check_attention, device, checked))
    session.check("graphs", partial(check_graphs, session.model, session.recorder))
    session.measure("plain", lambda: None)
    session.measure("graphs", session.recorder)
    if given.compile == "yes":

        def compiled() -> DiffusionDecoder:
            compile_layers(session.model)
            return session.model

        session.check("compiled layers", lambda: check_forwards("compiled", session.model, compiled))
        session.measure("compiled", lambda: None)
        session.measure("compiled, graphs", session.recorder)
    session.quantize()
    session.check("8-bit products", lambda: check_products(session.model))
    session.measure("8 bits", lambda: None)
    session.measure("8 bits, graphs", session.recorder)
    print(session.report.show())
    if given.json is not None:
        found = asdict(session.report) | {"holds": session.report.holds}
        given.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    return 0 if session.report.holds else 1


if __name__ == "__main__":
    sys.exit(main())
