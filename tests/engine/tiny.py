"""Tiny random models for tests, and a transformer forward written out plainly beside them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from psd_core.models.layers import DiffusionDecoder
from psd_core.models.spec import ModelSpec

VOCAB_SIZE = 48
MASK_ID = 47
CACHED = list[tuple[Tensor, Tensor]]  # per layer: rotated keys, values, [positions, H_kv, D]


def tiny_spec(
    num_kv_heads: int = 2,
    has_tied_head: bool = False,
    is_shifted: bool = False,
    block_length: int | None = None,
    is_context_causal: bool = False,
) -> ModelSpec:
    return ModelSpec(
        architecture="LLaDAModelLM",
        vocab_size=VOCAB_SIZE,
        hidden_size=32,
        num_layers=2,
        num_heads=2,
        num_kv_heads=num_kv_heads,
        head_dim=16,
        mlp_size=48,
        rope_theta=10000.0,
        norm_eps=1e-5,
        max_positions=256,
        has_tied_head=has_tied_head,
        has_qkv_bias=is_context_causal,
        mask_id=MASK_ID,
        eos_ids=(1,),
        is_shifted=is_shifted,
        block_length=block_length,
        is_context_causal=is_context_causal,
        has_out_bias=is_context_causal,
    )


def tiny_model(seed: int, spec: ModelSpec | None = None) -> DiffusionDecoder:
    """Random weights, large enough that confidences spread between 1/V and 1."""
    spec = spec or tiny_spec()
    model = DiffusionDecoder(spec, torch.float32, torch.device("cpu"))
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if name.endswith("norm.weight"):
            parameter.copy_(1.0 + 0.1 * noise)
        elif name == "head":
            parameter.copy_(0.6 * noise)
        else:
            parameter.copy_(noise * (1.5 / math.sqrt(parameter.shape[-1])))
    return model.eval()


def plain_forward(
    model: DiffusionDecoder,
    token_ids: list[int],
    first_pos: int,
    context: CACHED | None,
    open_start: int | None = None,
) -> tuple[Tensor, CACHED]:
    """Logits [n, V] of `token_ids` at positions first_pos …, attending to themselves and to `context`.

    Block-causal models attend to their own and earlier blocks only, context-causal ones to what stands before and, from
    `open_start` on, to everything; `context` must then be empty.

    Written without the project's layers, batches or caches, so that it can judge them.
    """
    spec = model.spec
    weights = dict(model.named_parameters())
    positions = torch.arange(first_pos, first_pos + len(token_ids), dtype=torch.float32)
    frequencies = spec.rope_theta ** (-torch.arange(0, spec.head_dim, 2, dtype=torch.float32) / spec.head_dim)
    angles = torch.outer(positions, frequencies)
    cos, sin = angles.cos()[:, None, :], angles.sin()[:, None, :]

    def norm(x: Tensor, weight: Tensor) -> Tensor:
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + spec.norm_eps) * weight

    def turn(x: Tensor) -> Tensor:
        a, b = x[..., : spec.head_dim // 2], x[..., spec.head_dim // 2 :]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)

    cached: CACHED = []
    x = weights["embedding"][torch.tensor(token_ids)]
    for index in range(spec.num_layers):
        layer = {name.removeprefix(f"layers.{index}."): w for name, w in weights.items() if f"layers.{index}." in name}
        normed = norm(x, layer["attention_norm.weight"])
        qkv = (normed @ layer["qkv.weight"].T + layer.get("qkv.bias", torch.zeros(1))).view(
            len(token_ids), -1, spec.head_dim
        )
        q = turn(qkv[:, : spec.num_heads])
        k = turn(qkv[:, spec.num_heads : spec.num_heads + spec.num_kv_heads])
        v = qkv[:, spec.num_heads + spec.num_kv_heads :]
        cached.append((k, v))
        if context is not None:
            k, v = torch.cat([context[index][0], k]), torch.cat([context[index][1], v])
        heads = []
        for head in range(spec.num_heads):
            kv_head = head // (spec.num_heads // spec.num_kv_heads)
            scores = q[:, head] @ k[:, kv_head].T / math.sqrt(spec.head_dim)
            if spec.block_length is not None:
                assert context is None
                sight = (positions // spec.block_length + 1) * spec.block_length - 1  # the last position seen
                if spec.is_context_causal:
                    assert open_start is not None
                    sight = torch.where(positions < open_start, positions, positions[-1])
                scores = scores.masked_fill(positions[None, :] > sight[:, None], -torch.inf)
            weight = torch.softmax(scores, dim=-1)
            heads.append(weight @ v[:, kv_head])
        x = x + torch.cat(heads, dim=-1) @ layer["out.weight"].T + layer.get("out.bias", torch.zeros(1))
        normed = norm(x, layer["mlp_norm.weight"])
        gate, up = torch.split(normed @ layer["mlp.gate_up"].T, spec.mlp_size, dim=-1)
        x = x + (gate * torch.sigmoid(gate) * up) @ layer["mlp.down"].T
    head_weight = weights["embedding"] if spec.has_tied_head else weights["head"]
    return norm(x, weights["final_norm.weight"]) @ head_weight.T, cached
