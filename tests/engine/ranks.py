"""A second rank for tests: a process that holds the other half of one model after the other.

python -m tests.engine.ranks MEETINGS CHECKPOINT…: the halves meet by the files MEETINGS/0, MEETINGS/1, …
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import torch
import torch.distributed as dist

from psd_core.config import QuantizationName
from psd_core.errors import CheckpointError
from psd_core.follower import Follower
from psd_core.models.group import Ranks
from psd_core.models.layers import DiffusionDecoder
from psd_core.models.loader import load_model
from psd_core.models.shard import Shard

CPU: Final = torch.device("cpu")
QUANTISED: Final = "quantised"  # name of the folder of a checkpoint that is loaded in int8


class OtherHalf:
    """The process of rank 1. Use as a context manager."""

    def __init__(self, checkpoints: Sequence[Path], meetings: Path) -> None:
        self._checkpoints, self._meetings = list(checkpoints), meetings
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(meetings), *map(str, checkpoints)], cwd=Path(__file__).parents[2]
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()
        self._process.kill()
        self._process.wait()

    def load(self, checkpoint: Path) -> DiffusionDecoder:
        """This process's half of a checkpoint; in the order of the list, for the other process goes by it."""
        if dist.is_initialized():
            dist.destroy_process_group()
        ranks = Ranks(Shard(0, 2), self._meetings / str(self._checkpoints.index(checkpoint)), CPU)
        fault = ranks.first_fault("")
        if fault:
            raise CheckpointError(fault)
        return load_model(checkpoint, "float32", "cpu", group=ranks, quantization=quantization_of(checkpoint))


def quantization_of(checkpoint: Path) -> QuantizationName:
    """As what both processes load a checkpoint."""
    return "int8" if checkpoint.name == QUANTISED else "none"


def follow(checkpoint: Path, meeting: Path) -> None:
    """Hold the other half until the test has done with it."""
    ranks = Ranks(Shard(1, 2), meeting, CPU)
    try:
        model = load_model(checkpoint, "float32", "cpu", group=ranks, quantization=quantization_of(checkpoint))
    except CheckpointError as error:
        ranks.first_fault(str(error))
    else:
        ranks.first_fault("")
        Follower(model).run()
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    for number, name in enumerate(sys.argv[2:]):
        follow(Path(name), Path(sys.argv[1]) / str(number))
