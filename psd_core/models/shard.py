"""Which part of a model one rank holds when several share it: the plan, as ranges of rows and columns. No tensors.

Attention is split by heads, an MLP by features, a mixture by whole experts, embedding and head by tokens of the
vocabulary; norms and routers are on every rank. A matrix that makes what is split keeps rows, the one behind it keeps
columns and gives a partial sum, so a layer sums over the ranks twice.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

from psd_core.errors import ConfigError
from psd_core.models.spec import ModelSpec

_LAYER: Final = re.compile(r"layers\.(\d+)\.(.+)")


@dataclass(frozen=True, slots=True)
class Shard:
    """Part `rank` of `size`; one of one is the whole model."""

    rank: int = 0
    size: int = 1

    def part(self, count: int) -> range:
        """This rank's share of `count`; the shares of all ranks are as large, but for the last ones if need be."""
        share = -(-count // self.size)
        return range(min(count, self.rank * share), min(count, (self.rank + 1) * share))


@dataclass(frozen=True, slots=True)
class Kept:
    """What a rank keeps of a matrix [rows, columns], of a vector [rows] or of several experts' matrices; None: all."""

    rows: tuple[range, ...] | None = None  # one behind the other
    columns: range | None = None
    experts: range | None = None


def check_shards(spec: ModelSpec, size: int) -> None:
    """ConfigError unless `size` ranks can share a model of this shape evenly."""
    experts = spec.experts
    has_dense = experts is None or experts.num_dense_layers > 0
    counts = {
        "attention heads": spec.num_heads,
        "key-value heads": spec.num_kv_heads,
        "features of the MLP": spec.mlp_size if has_dense else 0,
        "experts": experts.num_experts if experts else 0,
        "features of the shared expert": experts.shared_size if experts else 0,
    }
    for what, count in counts.items():
        if count % size:
            raise ConfigError(
                "tensor_parallel_size",
                f"tensor_parallel_size must divide the model's {count} {what}, got {size}",
            )


def local_spec(spec: ModelSpec, shard: Shard) -> ModelSpec:
    """The shape of one rank's layers; vocabulary and number of experts are those of the whole model."""
    experts = spec.experts
    return replace(
        spec,
        num_heads=spec.num_heads // shard.size,
        num_kv_heads=spec.num_kv_heads // shard.size,
        mlp_size=spec.mlp_size // shard.size,
        experts=replace(experts, shared_size=experts.shared_size // shard.size) if experts else None,
    )


def kept(name: str, spec: ModelSpec, shard: Shard) -> Kept:
    """What `shard` keeps of the parameter `name` of a model of shape `spec`."""
    if shard.size == 1:
        return Kept()
    if name in ("embedding", "head"):
        return Kept(rows=(shard.part(spec.vocab_size),))
    match = _LAYER.fullmatch(name)
    if match is None:
        return Kept()
    experts = spec.experts
    is_dense = experts is None or int(match[1]) < experts.num_dense_layers
    match match[2]:
        case "qkv.weight" | "qkv.bias":
            sizes = (spec.num_heads, spec.num_kv_heads, spec.num_kv_heads)
            return Kept(rows=_runs(shard, [count * spec.head_dim for count in sizes]))
        case "out.weight":
            return Kept(columns=shard.part(spec.num_heads * spec.head_dim))
        case "mlp.gate_up" if is_dense:
            return Kept(rows=_runs(shard, [spec.mlp_size] * 2))
        case "mlp.down" if is_dense:
            return Kept(columns=shard.part(spec.mlp_size))
        case "mlp.gate_up" | "mlp.down" if experts is not None:
            return Kept(experts=shard.part(experts.num_experts))
        case "mlp.shared_gate_up" if experts is not None:
            return Kept(rows=_runs(shard, [experts.shared_size] * 2))
        case "mlp.shared_down" if experts is not None:
            return Kept(columns=shard.part(experts.shared_size))
        case _:
            return Kept()


def _runs(shard: Shard, sizes: list[int]) -> tuple[range, ...]:
    """This rank's part of each of several matrices that stand one below the other."""
    runs, first = [], 0
    for size in sizes:
        part = shard.part(size)
        runs.append(range(first + part.start, first + part.stop))
        first += size
    return tuple(runs)
