"""Denoising forwards that are recorded once per shape and then repeated: on a GPU as CUDA graphs.

A small forward takes longer to launch, kernel by kernel, than to compute. A recorded one is launched as a whole; it
reads its input from a buffer that is filled before.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import torch
from torch import Tensor

from psd_core.errors import ConfigError, one_line
from psd_core.kvcache.store import KVStore
from psd_core.models.experts import Experts
from psd_core.models.layers import DiffusionDecoder
from psd_core.models.padded_attention import PaddedAttention, unpack
from psd_core.padded import Shape, pack, shape_of
from psd_core.plan import StepPlan

logger = logging.getLogger(__name__)

MAX_SHAPES: Final = 128  # recorded ones; each holds its buffers, and a launch list of the driver's

Compute = Callable[[Tensor], Tensor]
Replay = Callable[[], Tensor]


class Recorder(Protocol):
    """Makes something that can be repeated of a computation."""

    def record(self, compute: Compute, numbers: Tensor) -> Replay:
        """What computes again, from the contents that `numbers` then has, and always returns the same tensor.

        Besides `numbers`, `compute` reads weights and the key-value arena only, whose addresses stay; it reads nothing
        back. torch.OutOfMemoryError if there is no room.
        """


class EagerRecorder:
    """The twin for devices without graphs: computes again, kernel by kernel."""

    def record(self, compute: Compute, numbers: Tensor) -> Replay:
        """See Recorder."""
        return lambda: compute(numbers)


class CudaRecorder:
    """CUDA graphs that share one pool of memory, since no two of them run at once."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()

    def record(self, compute: Compute, numbers: Tensor) -> Replay:
        """See Recorder."""
        with torch.cuda.device(self._device):
            ahead = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch has no types there
            ahead.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(ahead):
                compute(numbers)  # libraries take their workspaces at the first call, which must not be recorded
            torch.cuda.current_stream().wait_stream(ahead)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool):
                output = compute(numbers)

        def replay() -> Tensor:
            graph.replay()
            return output

        return replay


@dataclass(slots=True, eq=False)
class Recorded:
    """One shape's buffers, and its recording once there is one."""

    staging: Tensor  # [n] int64 in the host's memory, pinned for a GPU
    numbers: Tensor  # [n] int64 on the device
    replay: Replay | None = None


class Graphs:
    """The recorded forwards of one model and one arena, by shape. Owns their buffers."""

    def __init__(self, model: DiffusionDecoder, store: KVStore, recorder: Recorder) -> None:
        """ConfigError if forwards of the model cannot be recorded on its device: one is tried."""
        check_recordable(model)
        self._model, self._store, self._recorder = model, store, recorder
        self._recorded: dict[Shape, Recorded | None] = {}  # None: there was no memory for it
        self._try()

    def run(self, plan: StepPlan) -> tuple[Tensor, Tensor] | None:
        """(final hidden states [T, d], which of them are scored [M] int64), good until the next run.

        None if the plan is not one for a graph. The results of an earlier run must have been read back: that is when
        its input may be overwritten.
        """
        shape = shape_of(plan)
        if shape is None or (shape not in self._recorded and len(self._recorded) >= MAX_SHAPES):
            return None
        if shape not in self._recorded:
            self._recorded[shape] = self._buffers(shape)
        entry = self._recorded[shape]
        if entry is None:
            return None
        num_scored = pack(plan, shape, self._model.spec.is_shifted, entry.staging.numpy())
        entry.numbers.copy_(entry.staging, non_blocking=True)
        if entry.replay is None:
            entry.replay = self._record(shape, entry.numbers)
        if entry.replay is None:
            self._recorded[shape] = None
            return None
        start = 4 * shape.num_tokens
        return entry.replay(), entry.numbers[start : start + num_scored]

    @torch.inference_mode()
    def _try(self) -> None:
        """Record a forward of padding and repeat it: whatever is wrong must not wait for the first request."""
        shape = Shape(num_groups=1, num_queries=8, num_context=8 if self._store.num_slots else 0)
        entry = self._buffers(shape)
        pack(StepPlan(()), shape, self._model.spec.is_shifted, entry.staging.numpy())
        entry.numbers.copy_(entry.staging)
        try:
            entry.replay = self._record(shape, entry.numbers)
            if entry.replay is not None:
                entry.replay().cpu()  # what fails on a device is told when something is read
        except RuntimeError as error:
            raise ConfigError(
                "cuda_graphs", f"--cuda-graphs: a forward cannot be recorded here: {one_line(error)}"
            ) from error
        if entry.replay is None:
            raise ConfigError("cuda_graphs", "--cuda-graphs: no memory is left for recording forwards")
        self._recorded[shape] = entry

    def _record(self, shape: Shape, numbers: Tensor) -> Replay | None:
        def compute(given: Tensor) -> Tensor:
            padded = unpack(given, shape)
            attention = PaddedAttention(padded, shape, self._store.num_slots, self._model.dtype)
            return self._model.compute(padded.token_ids, padded.positions, attention, self._store)

        try:
            return self._recorder.record(compute, numbers)
        except torch.OutOfMemoryError:
            logger.warning("no memory for a graph of %s: such forwards are launched kernel by kernel", shape)
            return None

    def _buffers(self, shape: Shape) -> Recorded:
        device = self._model.device
        staging = torch.zeros(shape.num_numbers, dtype=torch.int64, pin_memory=device.type == "cuda")
        return Recorded(staging, torch.zeros(shape.num_numbers, dtype=torch.int64, device=device))


def cuda_recorder(model: DiffusionDecoder) -> Recorder:
    """What records on the model's device. ConfigError if that is no GPU, or the model cannot be recorded."""
    if model.device.type != "cuda":
        raise ConfigError("cuda_graphs", f"--cuda-graphs needs a CUDA device; the model is on {model.device}")
    check_recordable(model)
    return CudaRecorder(model.device)


def check_recordable(model: DiffusionDecoder) -> None:
    """ConfigError if a forward of the model talks to the host or to other ranks half-way."""
    if model.group.shard.size > 1:
        size = model.group.shard.size
        raise ConfigError("cuda_graphs", f"--cuda-graphs needs --tensor-parallel-size 1, got {size}")
    if any(isinstance(module, Experts) for module in model.modules()):
        raise ConfigError("cuda_graphs", f"--cuda-graphs needs a model without experts, got {model.spec.architecture}")
