"""The decoder shared by all families: one block with switches, every weight a plain parameter.

A family (llada, …) says which checkpoint tensor goes where; nothing here knows a checkpoint's names. Where several
ranks hold a model together, `shard` says which part is whose; here stand the sums over them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from psd_core.batch import Batch
from psd_core.config import QuantizationName
from psd_core.kvcache.store import KVStore
from psd_core.models.attention import Attention, attention_over
from psd_core.models.experts import Experts, gated
from psd_core.models.group import Alone, Group
from psd_core.models.parameters import new_matrix, new_weight
from psd_core.models.quantized import product
from psd_core.models.shapes import has_kernels_per_shape, pad_rows
from psd_core.models.shard import local_spec
from psd_core.models.spec import ModelSpec


class RMSNorm(nn.Module):
    """Root-mean-square norm, computed in float32 and rounded once."""

    def __init__(self, size: int, eps: float, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.weight = new_weight((size,), dtype, device)
        self.eps = eps

    def forward(self, hidden: Tensor) -> Tensor:
        """[T, size] -> [T, size]."""
        return F.rms_norm(hidden.float(), (hidden.shape[-1],), None, self.eps).to(hidden.dtype) * self.weight


class Linear(nn.Module):
    """y = x W^T (+ b). With a group, the ranks have some columns of W each, and the product is their sum."""

    def __init__(
        self,
        num_in: int,
        num_out: int,
        has_bias: bool,
        dtype: torch.dtype,
        device: torch.device,
        group: Group | None = None,
        quantization: QuantizationName = "none",
    ) -> None:
        super().__init__()
        self.group = group
        self.weight, self.weight_scale = new_matrix((num_out, num_in), dtype, device, quantization)
        self.bias = new_weight((num_out,), dtype, device) if has_bias else None

    def forward(self, hidden: Tensor) -> Tensor:
        """[T, num_in] -> [T, num_out]."""
        if self.group is None:
            return product(hidden, self.weight, self.weight_scale, self.bias)
        total = self.group.sum(product(hidden, self.weight, self.weight_scale))
        return total if self.bias is None else total + self.bias


class GatedMLP(nn.Module):
    """SwiGLU with gate and up projections as one matrix."""

    def __init__(
        self,
        hidden_size: int,
        mlp_size: int,
        dtype: torch.dtype,
        device: torch.device,
        quantization: QuantizationName = "none",
    ) -> None:
        super().__init__()
        gate_up, down = (2 * mlp_size, hidden_size), (hidden_size, mlp_size)
        self.gate_up, self.gate_up_scale = new_matrix(gate_up, dtype, device, quantization)
        self.down, self.down_scale = new_matrix(down, dtype, device, quantization)

    def forward(self, hidden: Tensor) -> Tensor:
        """[T, d] -> [T, d]."""
        return gated(hidden, self.gate_up, self.down, self.gate_up_scale, self.down_scale)


class DecoderLayer(nn.Module):
    """Attention and an MLP, each behind a norm and added to the residual stream.

    Query, key and value projections are one matrix: fewer, larger products.
    """

    def __init__(
        self,
        spec: ModelSpec,
        is_dense: bool,
        dtype: torch.dtype,
        device: torch.device,
        group: Group,
        quantization: QuantizationName = "none",
    ) -> None:
        """spec: of this rank's part."""
        super().__init__()
        self.group = group
        self.num_heads, self.num_kv_heads, self.head_dim = spec.num_heads, spec.num_kv_heads, spec.head_dim
        qkv_size = (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim
        self.attention_norm = RMSNorm(spec.hidden_size, spec.norm_eps, dtype, device)
        self.qkv = Linear(spec.hidden_size, qkv_size, spec.has_qkv_bias, dtype, device, quantization=quantization)
        self.query_norm = self.key_norm = None
        if spec.has_qk_norm:
            self.query_norm = RMSNorm(spec.head_dim, spec.norm_eps, dtype, device)
            self.key_norm = RMSNorm(spec.head_dim, spec.norm_eps, dtype, device)
        attended_size = spec.num_heads * spec.head_dim
        self.out = Linear(attended_size, spec.hidden_size, spec.has_out_bias, dtype, device, group, quantization)
        self.mlp_norm = RMSNorm(spec.hidden_size, spec.norm_eps, dtype, device)
        self.mlp: GatedMLP | Experts
        if is_dense or spec.experts is None:
            self.mlp = GatedMLP(spec.hidden_size, spec.mlp_size, dtype, device, quantization)
        else:
            self.mlp = Experts(spec.experts, spec.hidden_size, dtype, device, group.shard, quantization)
        # What stands before and behind the attention; `compiling` puts compiled twins here.
        self.before: Callable[[DecoderLayer, Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]
        self.after: Callable[[DecoderLayer, Tensor, Tensor], Tensor]
        self.before, self.after = DecoderLayer.project, DecoderLayer.finish

    def forward(
        self, hidden: Tensor, rotary: tuple[Tensor, Tensor], attention: Attention, keys: Tensor, values: Tensor
    ) -> Tensor:
        """[T, d] -> [T, d]; `keys`, `values` are this layer's part of the arena."""
        query, key, value = self.before(self, hidden, *rotary)
        return self.after(self, hidden, attention(query, key, value, keys, values))

    def project(self, hidden: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [T, H, D] and keys [T, H_kv, D], rotated, and values [T, H_kv, D] of [T, d]."""
        qkv = self.qkv(self.attention_norm(hidden)).view(hidden.shape[0], -1, self.head_dim)
        num_rotated = self.num_heads + self.num_kv_heads
        rotated, value = qkv[:, :num_rotated], qkv[:, num_rotated:]
        if self.query_norm is not None and self.key_norm is not None:
            normed = self.query_norm(rotated[:, : self.num_heads]), self.key_norm(rotated[:, self.num_heads :])
            rotated = torch.cat(normed, dim=1)
        rotated = rotate(rotated, cos, sin)
        return rotated[:, : self.num_heads], rotated[:, self.num_heads :], value

    def finish(self, hidden: Tensor, attended: Tensor) -> Tensor:
        """[T, d] of the layer's input [T, d] and what attention made of it, [T, H, D]."""
        hidden = hidden + self.out(attended.flatten(1))
        result: Tensor = hidden + self.group.sum(self.mlp(self.mlp_norm(hidden)))
        return result


class DiffusionDecoder(nn.Module):
    """A masked diffusion language model: embeddings, layers, final norm, head.

    Its weights are immutable once loaded; `compiling` may put twins in place of the halves of a layer. Rotary tables
    stay float32 whatever the weights are. Quantised are the matrices of the layers only: embedding and head are an
    eighth of LLaDA-8B, and what rounds the head rounds every confidence. With several ranks this is one rank's part:
    `spec` is the shape of the whole, `local` of what is here.
    """

    def __init__(
        self,
        spec: ModelSpec,
        dtype: torch.dtype,
        device: torch.device,
        group: Group | None = None,
        quantization: QuantizationName = "none",
    ) -> None:
        super().__init__()
        self.group = Alone() if group is None else group
        self.spec, self.dtype, self.device = spec, dtype, device
        self.pads_rows = has_kernels_per_shape(dtype, device)
        self.local = local_spec(spec, self.group.shard)
        vocabulary = (-(-spec.vocab_size // self.group.shard.size), spec.hidden_size)  # the last rank's may have a rest
        self.embedding = new_weight(vocabulary, dtype, device)
        num_dense = spec.num_layers if spec.experts is None else spec.experts.num_dense_layers
        self.layers = nn.ModuleList(
            DecoderLayer(self.local, index < num_dense, dtype, device, self.group, quantization)
            for index in range(spec.num_layers)
        )
        self.final_norm = RMSNorm(spec.hidden_size, spec.norm_eps, dtype, device)
        self.head = self.embedding
        if not spec.has_tied_head:
            self.head = new_weight(vocabulary, dtype, device)
        rotary_dim = spec.rotary_dim or spec.head_dim
        exponents = torch.arange(0, rotary_dim, 2, dtype=torch.float32, device=device) / rotary_dim
        self.inverse_frequencies = 1.0 / spec.rope_theta**exponents  # [D' / 2] float32

    def forward(self, batch: Batch, store: KVStore) -> Tensor:
        """Final hidden states of all query tokens, [T, d]."""
        return self.advance(batch, store, range(len(self.layers)))[: batch.token_ids.shape[0]]

    def advance(self, batch: Batch, store: KVStore, layers: range, hidden: Tensor | None = None) -> Tensor:
        """Hidden states of all query tokens behind some of the layers, [T', d]; behind the last one, final ones.

        hidden   [T', d] as this returned it for the layers before; None in front of the first. T' >= T: see `shapes`.
        """
        token_ids, positions = batch.token_ids, batch.positions
        if self.pads_rows:
            token_ids, positions = pad_rows(token_ids), pad_rows(positions)
        hidden = self._embed(token_ids) if hidden is None else hidden
        return self._through(layers, hidden, positions, attention_over(batch), store)

    def compute(self, token_ids: Tensor, positions: Tensor, attention: Attention, store: KVStore) -> Tensor:
        """As `forward`, for tokens at positions, [T] int64 each, with an attention of whatever kind."""
        return self._through(range(len(self.layers)), self._embed(token_ids), positions, attention, store)

    def _through(
        self, layers: range, hidden: Tensor, positions: Tensor, attention: Attention, store: KVStore
    ) -> Tensor:
        angles = positions[:, None].float() * self.inverse_frequencies[None, :]
        angles = torch.cat([angles, angles], dim=-1)[:, None, :]  # [T, 1, D']
        rotary = (angles.cos(), angles.sin())
        for index in layers:
            hidden = self.layers[index](hidden, rotary, attention, store.keys[index], store.values[index])
        return self.final_norm(hidden) if layers.stop == len(self.layers) else hidden

    def loadable(self) -> dict[str, Tensor]:
        """What a checkpoint's tensors are put into or held against, by name."""
        return {**dict(self.named_parameters()), "inverse_frequencies": self.inverse_frequencies}

    def project(self, hidden: Tensor) -> Tensor:
        """[M, d] -> logits [M, V] float32 on rank 0; any other rank gives those of its part, which nobody needs."""
        rows = pad_rows(hidden) if self.pads_rows else hidden
        return self.group.gather(F.linear(rows, self.head))[: hidden.shape[0], : self.spec.vocab_size].float()

    def _embed(self, token_ids: Tensor) -> Tensor:
        """[T] -> [T, d]: every token's row is on one rank, and 0 on the others."""
        if self.group.shard.size == 1:
            return F.embedding(token_ids, self.embedding)
        part = self.group.shard.part(self.spec.vocab_size)
        is_elsewhere = (token_ids < part.start) | (token_ids >= part.stop)
        rows = F.embedding((token_ids - part.start).masked_fill(is_elsewhere, 0), self.embedding)
        return self.group.sum(rows.masked_fill(is_elsewhere[:, None], 0.0))


def rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding, half-split (Llama) layout, in float32: [T, n, D] with tables [T, 1, D'], D' <= D.

    Features behind the first D' pass through.
    """
    rotary_dim = cos.shape[-1]
    if rotary_dim < heads.shape[-1]:
        return torch.cat([rotate(heads[..., :rotary_dim], cos, sin), heads[..., rotary_dim:]], dim=-1)
    wide = heads.float()
    left, right = wide.chunk(2, dim=-1)
    return (wide * cos + torch.cat([-right, left], dim=-1) * sin).to(heads.dtype)
