"""The network as it is trained: a LLaDA block stack with tied embeddings, exported in LLaDA's tensor names."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from demo_model.vocabulary import BOS_ID, EOS_ID, MASK_ID, PAD_ID, VOCAB_SIZE


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of the network."""

    hidden: int = 256
    layers: int = 6
    heads: int = 4
    mlp: int = 768
    vocab: int = VOCAB_SIZE
    max_positions: int = 512
    rope_theta: float = 10_000.0
    eps: float = 1e-5
    embedding_scale: float = 8.0  # input embedding = this x output embedding


class Block(nn.Module):
    """Attention without a causal mask, then a gated MLP."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        d = shape.hidden
        self.heads, self.eps = shape.heads, shape.eps
        self.attn_norm, self.ff_norm = (nn.Parameter(torch.ones(d)) for _ in range(2))
        self.q_proj, self.k_proj, self.v_proj, self.attn_out = (_matrix(d, d) for _ in range(4))
        self.ff_proj, self.up_proj = (_matrix(shape.mlp, d) for _ in range(2))
        self.ff_out = _matrix(d, shape.mlp)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """[B, T, d] -> [B, T, d]."""
        normed = F.rms_norm(x, (x.shape[-1],), self.attn_norm, self.eps)
        q, k, v = (self._split(F.linear(normed, w)) for w in (self.q_proj, self.k_proj, self.v_proj))
        # Written out: on a CPU, at these lengths, the fused kernel's backward takes several times as long.
        scores = torch.matmul(_rotate(q, cos, sin), _rotate(k, cos, sin).transpose(-2, -1)) * q.shape[-1] ** -0.5
        mixed = torch.matmul(scores.float().softmax(dim=-1).to(v.dtype), v)
        x = x + F.linear(mixed.transpose(1, 2).flatten(2), self.attn_out)
        normed = F.rms_norm(x, (x.shape[-1],), self.ff_norm, self.eps)
        return x + F.linear(F.silu(F.linear(normed, self.ff_proj)) * F.linear(normed, self.up_proj), self.ff_out)

    def _split(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], x.shape[1], self.heads, -1).transpose(1, 2)


class Network(nn.Module):
    """Token ids to final hidden states; times the embedding they are logits of the same position."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Parameter(torch.randn(shape.vocab, shape.hidden) * shape.hidden**-0.5)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.final_norm = nn.Parameter(torch.ones(shape.hidden))
        half = torch.arange(0, shape.hidden // shape.heads, 2, dtype=torch.float32)
        frequencies = shape.rope_theta ** (-half / (shape.hidden // shape.heads))
        angles = torch.outer(torch.arange(shape.max_positions, dtype=torch.float32), frequencies)
        self.cos: Tensor
        self.sin: Tensor
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, token_ids: Tensor) -> Tensor:
        """[B, T] int64 -> [B, T, d]; multiply with `embedding` for logits."""
        x = F.embedding(token_ids, self.embedding) * self.shape.embedding_scale
        cos, sin = self.cos[: token_ids.shape[1]], self.sin[: token_ids.shape[1]]
        for block in self.blocks:
            x = block(x, cos, sin)
        return F.rms_norm(x, (x.shape[-1],), self.final_norm, self.shape.eps)


def export(network: Network, folder: Path) -> None:
    """Write config.json, generation_config.json and bf16 weights in LLaDA's names, head and embedding untied."""
    shape, root = network.shape, "model.transformer"
    embedding = network.embedding.detach()
    tensors = {
        f"{root}.wte.weight": embedding * shape.embedding_scale,
        f"{root}.ff_out.weight": embedding,
        f"{root}.ln_f.weight": network.final_norm,
    }
    for index, block in enumerate(network.blocks):
        for name, parameter in block.named_parameters():
            tensors[f"{root}.blocks.{index}.{name}.weight"] = parameter
    folder.mkdir(parents=True, exist_ok=True)
    stored = {name: tensor.detach().to("cpu", torch.bfloat16).contiguous() for name, tensor in tensors.items()}
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    _write_json(folder / "config.json", _config(shape))
    _write_json(
        folder / "generation_config.json",
        {"bos_token_id": BOS_ID, "eos_token_id": EOS_ID, "pad_token_id": PAD_ID},
    )


def _config(shape: Shape) -> dict[str, object]:
    """config.json with LLaDA's keys."""
    return {
        "model_type": "llada",
        "architectures": ["LLaDAModelLM"],
        "d_model": shape.hidden,
        "n_heads": shape.heads,
        "n_kv_heads": shape.heads,
        "n_layers": shape.layers,
        "mlp_hidden_size": shape.mlp,
        "vocab_size": shape.vocab,
        "embedding_size": shape.vocab,
        "max_sequence_length": shape.max_positions,
        "rope": True,
        "rope_theta": shape.rope_theta,
        "rope_full_precision": True,
        "layer_norm_type": "rms",
        "rms_norm_eps": shape.eps,
        "block_type": "llama",
        "activation_type": "silu",
        "attention_layer_norm": False,
        "bias_for_layer_norm": False,
        "include_bias": False,
        "include_qkv_bias": False,
        "alibi": False,
        "multi_query_attention": None,
        "input_emb_norm": False,
        "scale_logits": False,
        "weight_tying": False,
        "mask_token_id": MASK_ID,
        "eos_token_id": EOS_ID,
        "pad_token_id": PAD_ID,
        "bos_token_id": BOS_ID,
        "use_cache": False,
        "torch_dtype": "bfloat16",
    }


def _write_json(path: Path, content: dict[str, object]) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _matrix(rows: int, columns: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(rows, columns) * columns**-0.5)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding, half-split layout, in float32: [B, H, T, D] with tables [T, D / 2]."""
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).to(x.dtype)
