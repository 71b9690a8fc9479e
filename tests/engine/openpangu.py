"""A made-up openPangu-7B-Diffusion checkpoint, and its forward and its authors' loop written out from the facts.

Nothing of the model's code is used: the twin reads the checkpoint's own names.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

LAYERS, WIDTH, HEADS, KV_HEADS, MLP = 2, 48, 4, 2, 80
HEAD_DIM = WIDTH // HEADS
THETA, EPS = 16e6, 1e-6
BLOCK = 8
Tensors = dict[str, Tensor]
Order = Callable[[Tensor], Tensor]  # probabilities [n, V] -> how early each position comes [n]


def config_of(vocab_size: int, **others: object) -> dict[str, object]:
    """The keys of the published config.json, and the block length, which it leaves out."""
    return {
        "architectures": ["PanguEmbeddedForCausalLM"],
        "_name_or_path": "tiny-Diffusion",
        "model_type": "PanguEmbedded",
        "bias": True,
        "attention_dropout": 0.0,
        "bos_token_id": 1,
        "pad_token_id": 0,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "hidden_size": WIDTH,
        "initializer_range": 0.02,
        "intermediate_size": MLP,
        "max_position_embeddings": 256,
        "num_attention_heads": HEADS,
        "num_hidden_layers": LAYERS,
        "num_key_value_heads": KV_HEADS,
        "rms_norm_eps": EPS,
        "rope_theta": THETA,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.53.2",
        "use_cache": True,
        "vocab_size": vocab_size,
        "block_length": BLOCK,
        **others,
    }


def write_openpangu(folder: Path, vocab_size: int, mask_id: int, **others: object) -> Tensors:
    """config.json and random float32 tensors under the published names, the rotary frequencies among them.

    The mask is never the most probable token: the authors' loop would not end.
    """
    generator = torch.Generator().manual_seed(11)

    def matrix(rows: int, columns: int, gain: float = 1.5) -> Tensor:
        return torch.randn(rows, columns, generator=generator) * gain / math.sqrt(columns)

    def vector(size: int, middle: float) -> Tensor:
        return middle + 0.3 * torch.randn(size, generator=generator)

    tensors = {
        "model.embed_tokens.weight": matrix(vocab_size, WIDTH, 7.0),
        "model.norm.weight": vector(WIDTH, 1.0),
        "lm_head.weight": matrix(vocab_size, WIDTH, 4.0),
    }
    tensors["lm_head.weight"][mask_id] = 0.0
    sizes = {"q": HEADS * HEAD_DIM, "k": KV_HEADS * HEAD_DIM, "v": KV_HEADS * HEAD_DIM}
    for index in range(LAYERS):
        layer = f"model.layers.{index}"
        for name, size in sizes.items():
            tensors[f"{layer}.self_attn.{name}_proj.weight"] = matrix(size, WIDTH)
            tensors[f"{layer}.self_attn.{name}_proj.bias"] = vector(size, 0.0)
        tensors |= {
            f"{layer}.self_attn.o_proj.weight": matrix(WIDTH, HEADS * HEAD_DIM),
            f"{layer}.self_attn.o_proj.bias": vector(WIDTH, 0.0),
            f"{layer}.self_attn.rotary_emb.inv_freq": THETA ** (-torch.arange(0, HEAD_DIM, 2) / HEAD_DIM),
            f"{layer}.mlp.gate_proj.weight": matrix(MLP, WIDTH),
            f"{layer}.mlp.up_proj.weight": matrix(MLP, WIDTH),
            f"{layer}.mlp.down_proj.weight": matrix(WIDTH, MLP),
            f"{layer}.input_layernorm.weight": vector(WIDTH, 1.0),
            f"{layer}.post_attention_layernorm.weight": vector(WIDTH, 1.0),
        }
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config_of(vocab_size, **others)))
    return tensors


def twin_logits(tensors: Tensors, token_ids: list[int], open_start: int) -> Tensor:
    """[T, V] of one row: tokens before `open_start` see what stands before them, the others everything."""
    count = len(token_ids)
    places = torch.arange(count)
    sight = torch.where(places < open_start, places, count - 1)
    hidden = tensors["model.embed_tokens.weight"][token_ids]
    for index in range(LAYERS):
        layer = f"model.layers.{index}."
        w = {name.removeprefix(layer): tensor for name, tensor in tensors.items() if name.startswith(layer)}
        normed = _rms(hidden, w["input_layernorm.weight"])
        q, k, v = (
            (normed @ w[f"self_attn.{n}_proj.weight"].T + w[f"self_attn.{n}_proj.bias"]).view(count, -1, HEAD_DIM)
            for n in "qkv"
        )
        q, k = _turn(q), _turn(k)
        mixed = []
        for head in range(HEADS):
            group = head // (HEADS // KV_HEADS)
            scores = q[:, head] @ k[:, group].T / math.sqrt(HEAD_DIM)
            scores[places[None, :] > sight[:, None]] = -math.inf
            mixed.append(scores.softmax(-1) @ v[:, group])
        hidden = hidden + torch.cat(mixed, -1) @ w["self_attn.o_proj.weight"].T + w["self_attn.o_proj.bias"]
        normed = _rms(hidden, w["post_attention_layernorm.weight"])
        gate = normed @ w["mlp.gate_proj.weight"].T
        hidden = hidden + (gate * gate.sigmoid() * (normed @ w["mlp.up_proj.weight"].T)) @ w["mlp.down_proj.weight"].T
    return _rms(hidden, tensors["model.norm.weight"]) @ tensors["lm_head.weight"].T


def authors_loop(
    tensors: Tensors,
    prompt: list[int],
    num_new: int,
    order: Order,
    threshold: float | None,
    num_small_blocks: int,
    mask_id: int,
    stop_id: int | None,
) -> tuple[list[int], int]:
    """(tokens behind the prompt, forwards) of the published generation loop at temperature 0.

    A pass over finished tokens is causal and gives the first token of the next block; passes over the block see it
    whole, with logits shifted by one; its small blocks are filled one after the other. What is cached there is
    computed again here: it is the same.
    """
    ids = [*prompt, *[mask_id] * num_new]
    forwards = 1
    ids[len(prompt)] = int(twin_logits(tensors, prompt, len(prompt))[-1].argmax())
    small = BLOCK // num_small_blocks
    for start in range(len(prompt), len(ids), BLOCK):
        stop = start + BLOCK
        for first in range(start, stop, small):
            while masked := [place for place in range(first, first + small) if ids[place] == mask_id]:
                forwards += 1
                shifted = twin_logits(tensors, ids[:stop], start)[[place - 1 for place in masked]]
                probabilities = shifted.softmax(-1)
                sureness = order(probabilities)
                chosen = {int(sureness.argmax())}
                if threshold is not None:
                    chosen |= {index for index, value in enumerate(sureness.tolist()) if value > threshold}
                for index in chosen:
                    ids[masked[index]] = int(probabilities[index].argmax())
            if stop_id is not None and stop_id in ids[len(prompt) :]:
                return ids[len(prompt) :], forwards
        forwards += 1
        if stop < len(ids):
            ids[stop] = int(twin_logits(tensors, ids[:stop], stop)[-1].argmax())
    return ids[len(prompt) :], forwards


def highest(probabilities: Tensor) -> Tensor:
    """`origin` and `confidence_threshold`."""
    return probabilities.amax(-1)


def lead(probabilities: Tensor) -> Tensor:
    """`topk_margin`."""
    best = probabilities.sort(-1, descending=True).values
    return best[:, 0] - best[:, 1]


def negative_entropy(probabilities: Tensor) -> Tensor:
    """`entropy`."""
    return (probabilities * (probabilities + 1e-10).log()).sum(-1)


def _rms(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * weight


def _turn(x: Tensor) -> Tensor:
    """Rotate the pairs (i, i + D/2) of every head, [T, n, D]."""
    rates = THETA ** (-torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    angles = torch.arange(x.shape[0])[:, None, None] * rates
    left, right = x.chunk(2, -1)
    return torch.cat([left * angles.cos() - right * angles.sin(), right * angles.cos() + left * angles.sin()], -1)
