"""The ranks that hold one model together, and what they say to each other. All of it is plain tensors.

Two channels: numbers that steer go through the hosts' memory (gloo), where a rank that waits costs nothing; sums and
logits go from device to device (NCCL between GPUs, gloo between CPUs). Every rank must make the same calls in the same
order. Whoever waits for a rank that died gets a RuntimeError, at once or when the supervisor ends it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from psd_core.models.shard import Shard

PATIENCE: Final = timedelta(days=365)  # a rank waits as long as nothing is asked; who hangs is the supervisor's affair
FAULT_BYTES: Final = 2048  # of a fault's text
WHOLE: Final = Shard()


class Group(Protocol):
    """What a model asks of its ranks."""

    @property
    def shard(self) -> Shard:
        """This rank's part."""

    def sum(self, partial: Tensor) -> Tensor:
        """The sum over all ranks, the same bits on each; may be written over `partial`."""

    def gather(self, part: Tensor) -> Tensor:
        """[M, n] of every rank side by side, [M, n * size], on rank 0; the others get their own part back."""

    def least(self, value: int) -> int:
        """The least of the ranks' numbers."""

    def tell(self, numbers: Sequence[int]) -> list[int]:
        """The numbers of rank 0, of which every rank gives as many."""

    def first_fault(self, fault: str) -> str:
        """The text of the lowest rank that has one; empty if none has."""


@dataclass(frozen=True, slots=True)
class Alone:
    """No other rank is asked. With a shard of several: a model whose shape is looked at, never computed with."""

    shard: Shard = WHOLE

    def sum(self, partial: Tensor) -> Tensor:
        return partial

    def gather(self, part: Tensor) -> Tensor:
        return part

    def least(self, value: int) -> int:
        return value

    def tell(self, numbers: Sequence[int]) -> list[int]:
        return list(numbers)

    def first_fault(self, fault: str) -> str:
        return fault


class Ranks:
    """Processes of one machine. Owns their channels."""

    def __init__(self, shard: Shard, meeting: Path, device: torch.device) -> None:
        """Returns once every rank is here. meeting: a file, new for every group, that only this user may reach."""
        self.shard = shard
        # Nothing leaves the machine: both would otherwise listen on whatever interface the host's name belongs to.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
        dist.init_process_group(
            "gloo", init_method=f"file://{meeting}", rank=shard.rank, world_size=shard.size, timeout=PATIENCE
        )
        self._device_group: dist.ProcessGroup | None = None  # None: the one of the hosts
        if device.type == "cuda":
            torch.cuda.set_device(device)
            self._device_group = dist.new_group(backend="nccl", timeout=PATIENCE)

    def sum(self, partial: Tensor) -> Tensor:
        """See Group."""
        dist.all_reduce(partial, group=self._device_group)
        return partial

    def gather(self, part: Tensor) -> Tensor:
        """See Group."""
        if self.shard.rank:
            dist.gather(part, None, dst=0, group=self._device_group)
            return part
        parts = [torch.empty_like(part) for _ in range(self.shard.size)]
        dist.gather(part, parts, dst=0, group=self._device_group)
        return torch.cat(parts, dim=-1)

    def least(self, value: int) -> int:
        """See Group."""
        number = torch.tensor([value], dtype=torch.int64)
        dist.all_reduce(number, dist.ReduceOp.MIN)
        return int(number)

    def tell(self, numbers: Sequence[int]) -> list[int]:
        """See Group."""
        told = torch.tensor(numbers, dtype=torch.int64)
        dist.broadcast(told, src=0)
        return told.tolist()

    def first_fault(self, fault: str) -> str:
        """See Group."""
        text = fault.encode(errors="replace")[:FAULT_BYTES]
        own = torch.frombuffer(bytearray(text.ljust(FAULT_BYTES, b"\0")), dtype=torch.uint8)
        every = [torch.empty_like(own) for _ in range(self.shard.size)]
        dist.all_gather(every, own)
        texts = [bytes(entry.tolist()).rstrip(b"\0").decode(errors="replace") for entry in every]
        return next((entry for entry in texts if entry), "")
