"""SDAR-MoE, of which no reference outputs exist: a made-up checkpoint against a forward written out from its tensors.

The twin reads the checkpoint's own names and shares no code with the model: one token at a time through its experts,
one head at a time through attention, as Qwen3-MoE's paper and SDAR's block-causal mask say.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from psd_core.config import CacheName, DecoderConfig
from psd_core.kvcache.modes import CAUSAL_CACHES
from psd_core.models.experts import Experts
from psd_core.models.loader import load_model
from psd_core.request import Request
from tests.engine.drive import Driver, run_alone
from tests.engine.test_families import all_logits

LAYERS, WIDTH, HEADS, KV_HEADS, HEAD_DIM, EXPERTS, CHOSEN, EXPERT_WIDTH, VOCAB, BLOCK = 2, 48, 4, 2, 16, 6, 2, 24, 80, 4
THETA, EPS = 10000.0, 1e-6
CONFIG = {
    "architectures": ["SDARMoeForCausalLM"],
    "model_type": "sdar_moe",
    "hidden_act": "silu",
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "intermediate_size": 96,
    "moe_intermediate_size": EXPERT_WIDTH,
    "num_experts": EXPERTS,
    "num_experts_per_tok": CHOSEN,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "rms_norm_eps": EPS,
    "rope_theta": THETA,
    "max_position_embeddings": 256,
    "vocab_size": VOCAB,
    "tie_word_embeddings": False,
    "block_size": BLOCK,
    "mask_token_id": 79,
    "eos_token_id": 1,
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights under the real names, large enough that experts and answers differ."""
    folder = tmp_path_factory.mktemp("sdar-moe")
    generator = torch.Generator().manual_seed(5)

    def matrix(rows: int, columns: int, gain: float = 1.5) -> Tensor:
        return torch.randn(rows, columns, generator=generator) * gain / math.sqrt(columns)

    def norm(size: int) -> Tensor:
        return 1 + 0.1 * torch.randn(size, generator=generator)

    tensors = {
        "model.embed_tokens.weight": matrix(VOCAB, WIDTH, 7.0),
        "model.norm.weight": norm(WIDTH),
        "lm_head.weight": matrix(VOCAB, WIDTH, 4.0),
    }
    for index in range(LAYERS):
        layer = f"model.layers.{index}"
        tensors |= {
            f"{layer}.self_attn.q_proj.weight": matrix(HEADS * HEAD_DIM, WIDTH),
            f"{layer}.self_attn.k_proj.weight": matrix(KV_HEADS * HEAD_DIM, WIDTH),
            f"{layer}.self_attn.v_proj.weight": matrix(KV_HEADS * HEAD_DIM, WIDTH),
            f"{layer}.self_attn.o_proj.weight": matrix(WIDTH, HEADS * HEAD_DIM),
            f"{layer}.self_attn.q_norm.weight": norm(HEAD_DIM),
            f"{layer}.self_attn.k_norm.weight": norm(HEAD_DIM),
            f"{layer}.input_layernorm.weight": norm(WIDTH),
            f"{layer}.post_attention_layernorm.weight": norm(WIDTH),
            f"{layer}.mlp.gate.weight": matrix(EXPERTS, WIDTH, 3.0),
        }
        for expert in range(EXPERTS):
            tensors |= {
                f"{layer}.mlp.experts.{expert}.gate_proj.weight": matrix(EXPERT_WIDTH, WIDTH),
                f"{layer}.mlp.experts.{expert}.up_proj.weight": matrix(EXPERT_WIDTH, WIDTH),
                f"{layer}.mlp.experts.{expert}.down_proj.weight": matrix(WIDTH, EXPERT_WIDTH),
            }
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


def twin_logits(tensors: dict[str, Tensor], token_ids: list[int]) -> Tensor:
    """[T, V] of one row."""
    positions = range(len(token_ids))
    hidden = [tensors["model.embed_tokens.weight"][token_id] for token_id in token_ids]
    for index in range(LAYERS):
        weights = {
            name.removeprefix(f"model.layers.{index}."): tensor
            for name, tensor in tensors.items()
            if name.startswith(f"model.layers.{index}.")
        }
        normed = [rms(x, weights["input_layernorm.weight"]) for x in hidden]
        attended = attention(weights, normed)
        hidden = [x + y for x, y in zip(hidden, attended, strict=True)]
        hidden = [x + mixture(weights, rms(x, weights["post_attention_layernorm.weight"])) for x in hidden]
    return torch.stack([tensors["lm_head.weight"] @ rms(hidden[p], tensors["model.norm.weight"]) for p in positions])


def rms(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.square().mean() + EPS).sqrt() * weight


def turn(x: Tensor, position: int) -> Tensor:
    """Rotate the pairs (i, i + D/2) of one head."""
    half = HEAD_DIM // 2
    turned = x.clone()
    for i in range(half):
        angle = position * THETA ** (-2 * i / HEAD_DIM)
        turned[i] = x[i] * math.cos(angle) - x[i + half] * math.sin(angle)
        turned[i + half] = x[i + half] * math.cos(angle) + x[i] * math.sin(angle)
    return turned


def attention(weights: dict[str, Tensor], normed: list[Tensor]) -> list[Tensor]:
    def heads(kind: str, x: Tensor) -> list[Tensor]:
        return list((weights[f"self_attn.{kind}_proj.weight"] @ x).view(-1, HEAD_DIM))

    def placed(kind: str, x: Tensor, position: int) -> list[Tensor]:
        return [turn(rms(head, weights[f"self_attn.{kind}_norm.weight"]), position) for head in heads(kind, x)]

    queries = [placed("q", x, position) for position, x in enumerate(normed)]
    keys = [placed("k", x, position) for position, x in enumerate(normed)]
    values = [heads("v", x) for x in normed]
    results = []
    for position, query in enumerate(queries):
        visible = [other for other in range(len(normed)) if other // BLOCK <= position // BLOCK]
        mixed = []
        for head in range(HEADS):
            kv_head = head // (HEADS // KV_HEADS)
            scores = torch.stack([query[head] @ keys[other][kv_head] / math.sqrt(HEAD_DIM) for other in visible])
            shares = scores.softmax(0)
            mixed.append(sum(share * values[other][kv_head] for share, other in zip(shares, visible, strict=True)))
        results.append(weights["self_attn.o_proj.weight"] @ torch.cat(mixed))
    return results


def mixture(weights: dict[str, Tensor], x: Tensor) -> Tensor:
    """The best experts of softmax over all of them, their shares brought to a sum of 1."""
    scores = (weights["mlp.gate.weight"] @ x).softmax(0)
    best = scores.argsort(descending=True)[:CHOSEN].tolist()
    total = torch.zeros_like(x)
    for expert in best:
        name = f"mlp.experts.{expert}"
        gate = weights[f"{name}.gate_proj.weight"] @ x
        inner = gate * torch.sigmoid(gate) * (weights[f"{name}.up_proj.weight"] @ x)
        total += scores[expert] / scores[best].sum() * (weights[f"{name}.down_proj.weight"] @ inner)
    return total


def test_logits_equal_the_twin(checkpoint: Path) -> None:
    token_ids = torch.randint(0, VOCAB, (14,), generator=torch.Generator().manual_seed(1))
    expected = twin_logits(load_file(checkpoint / "model.safetensors"), token_ids.tolist())
    logits = all_logits(load_model(checkpoint, device="cpu"), token_ids, BLOCK)
    assert expected.std() > 1
    torch.testing.assert_close(logits, expected, atol=5e-5, rtol=1e-4)


def test_a_checkpoint_without_renormalisation_gives_other_logits(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").symlink_to(checkpoint / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"norm_topk_prob": False}))
    token_ids = torch.arange(10)
    with_it, without = (all_logits(load_model(path, device="cpu"), token_ids, BLOCK) for path in (checkpoint, tmp_path))
    assert (with_it - without).abs().max() > 0.1


def test_drafts_batches_and_caches_change_nothing(checkpoint: Path) -> None:
    model = load_model(checkpoint, device="cpu")
    prompts = [(7, 8, 9), (30, 2, 50, 60, 70, 71, 72, 3), tuple(range(10, 27))]

    def request(name: str, prompt: tuple[int, ...], cache: CacheName, depth: int) -> Request:
        decoder = DecoderConfig(threshold=0.5, block_length=BLOCK, draft_depth=depth, cache=cache)
        return Request(name, prompt, 16, decoder)

    plain = [run_alone(model, request("r", prompt, "none", 0))[0].token_ids for prompt in prompts]
    for cache in CAUSAL_CACHES:
        for depth in (1, 3, 7):
            driver = Driver(model)
            for index, prompt in enumerate(prompts):
                driver.add(request(f"r{index}", prompt, cache, depth))
            driver.run()
            assert [driver.outcomes[f"r{index}"].token_ids for index in range(len(prompts))] == plain


def test_every_expert_is_visited_at_most_once_per_forward(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_model(checkpoint, dtype="bfloat16", device="cpu")
    experts = next(layer.mlp for layer in model.layers if isinstance(layer.mlp, Experts))
    seen: list[int] = []
    from psd_core.models import experts as module

    def rows_of(hidden: torch.Tensor) -> int:
        return int(hidden.any(dim=-1).sum())  # without those that round the number of rows up

    plain = module.gated

    def counted(*tensors: torch.Tensor) -> torch.Tensor:
        seen.append(rows_of(tensors[0]))
        return plain(*tensors)

    monkeypatch.setattr(module, "gated", counted)
    with torch.inference_mode():
        experts(torch.randn(40, WIDTH, dtype=torch.bfloat16))
    assert len(seen) <= EXPERTS
    assert sum(seen) == 40 * CHOSEN
    assert experts.router.weight.dtype == torch.float32
    assert model.inverse_frequencies.dtype == torch.float32
