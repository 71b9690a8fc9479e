"""Every model family: logits of the public reference code, and PSD on top of them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from psd_core.batch import build_batch
from psd_core.block import BlockState
from psd_core.config import CacheName, DecoderConfig
from psd_core.kvcache.modes import BIDIRECTIONAL_CACHES, CAUSAL_CACHES, Window
from psd_core.kvcache.store import KVStore
from psd_core.models.experts import Experts, gated
from psd_core.models.layers import DiffusionDecoder
from psd_core.models.loader import load_model
from psd_core.plan import Span, StepPlan
from psd_core.request import Request
from tests.engine.drive import Driver, run_alone

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
FAMILIES = ["llada", "llada_gqa", "llada_tied", "dream", "lladamoe", "llada2", "sdar", "fastdllm2"]
# The reference logits of LLaDA2 were made with blocks of 8; a checkpoint's own length is 32.
GOLDEN_BLOCKS = {"llada2": 8, "sdar": 4, "fastdllm2": 16}


@cache
def family_model(name: str) -> DiffusionDecoder:
    return load_model(GOLDEN / name / "ckpt", dtype="float32", device="cpu")


def all_logits(model: DiffusionDecoder, token_ids: torch.Tensor, causal_block: int | None) -> torch.Tensor:
    """[T, V] logits of one row without a cache."""
    ids = token_ids.numpy()[None, :]
    states = (BlockState.masked(1),)
    span = Span(Request("r", (1,), 1), "denoise", states, ids, Window(0, ids.shape[1], 0), 0, None, causal_block)
    batch = build_batch(StepPlan((span,)), False, model.dtype, model.device)
    spec = model.spec
    with torch.inference_mode():
        hidden = model(batch, KVStore(spec.num_layers, 0, spec.num_kv_heads, spec.head_dim, model.dtype, model.device))
        return model.project(hidden)


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_equal_the_reference(name: str) -> None:
    golden = load_file(GOLDEN / name / "logits.safetensors")
    logits = all_logits(family_model(name), golden["input_ids"], GOLDEN_BLOCKS.get(name))
    assert (logits - golden["logits_fp32"]).abs().max() <= 5e-5


def test_router_choices_equal_the_reference() -> None:
    model = family_model("llada2")
    golden = load_file(GOLDEN / "llada2" / "logits.safetensors")
    routers = [layer.mlp.router for layer in model.layers if isinstance(layer.mlp, Experts)]
    seen: list[torch.Tensor] = []
    handles = [router.register_forward_hook(lambda _, __, output: seen.append(output[0])) for router in routers]
    all_logits(model, golden["input_ids"], GOLDEN_BLOCKS["llada2"])
    for handle in handles:
        handle.remove()
    assert len(seen) == 2
    for index, chosen in enumerate(seen):
        expected = golden[f"router_topk_{index}"]
        assert torch.equal(chosen.sort(dim=-1).values, expected.sort(dim=-1).values)


@pytest.mark.parametrize("name", ["lladamoe", "llada2"])
def test_grouped_experts_equal_one_token_at_a_time(name: str) -> None:
    experts = next(layer.mlp for layer in family_model(name).layers if isinstance(layer.mlp, Experts))
    hidden = torch.randn(30, 64, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        chosen, weights = experts.router(hidden)
        expected = torch.zeros_like(hidden)
        for token in range(30):
            one = hidden[token : token + 1]
            for expert, weight in zip(chosen[token].tolist(), weights[token].tolist(), strict=True):
                expected[token] += weight * gated(one, experts.gate_up[expert], experts.down[expert])[0]
            if experts.shared_gate_up is not None and experts.shared_down is not None:
                expected[token] += gated(one, experts.shared_gate_up, experts.shared_down)[0]
        torch.testing.assert_close(experts(hidden), expected, atol=1e-5, rtol=1e-5)


def request_for(name: str, request_id: str, prompt: tuple[int, ...], cache_mode: CacheName, depth: int) -> Request:
    block_length = family_model(name).spec.block_length or 8
    decoder = DecoderConfig(
        policy="threshold",
        threshold=0.5,
        block_length=block_length,
        draft_depth=depth,
        cache=cache_mode,
    )
    return Request(request_id, prompt, 24, decoder)


@pytest.mark.parametrize("name", FAMILIES)
def test_exact_drafts_and_batches_change_nothing_in_any_cache_mode(name: str) -> None:
    model = family_model(name)
    modes = BIDIRECTIONAL_CACHES if model.spec.block_length is None else CAUSAL_CACHES
    prompts = [(7, 8, 9), (300, 2, 50, 60, 70, 80, 90), tuple(range(100, 117))]
    plain: dict[str, list[list[int]]] = {}
    for mode in modes:
        alone = [run_alone(model, request_for(name, "r", prompt, mode, 0)) for prompt in prompts]
        plain[mode] = [outcome.token_ids for outcome, _ in alone]
        driver = Driver(model)
        for index, prompt in enumerate(prompts):
            driver.add(request_for(name, f"r{index}", prompt, mode, 1 + 2 * index))
        driver.run()
        for index, (_, finished) in enumerate(alone):
            drafted = driver.outcomes[f"r{index}"]
            assert drafted.token_ids == plain[mode][index]
            assert drafted.finished is not None
            assert drafted.finished.figures.forwards <= finished.figures.forwards
    if "causal" in plain:
        assert plain["causal"] == plain["none"]


@pytest.mark.parametrize("name", ["llada2", "sdar", "fastdllm2"])
def test_a_block_causal_model_keeps_its_own_block_length_and_caches(name: str) -> None:
    model = family_model(name)
    request = request_for(name, "r", (7, 8, 9), "none", 0)
    driver = Driver(model)
    with pytest.raises(Exception, match="block_length must be"):
        driver.add(replace(request, decoder=replace(request.decoder, block_length=5)))
    with pytest.raises(Exception, match="cache must be one of none, causal"):
        driver.add(replace(request, decoder=replace(request.decoder, cache="dual")))


@pytest.mark.parametrize(
    ("name", "mask_id", "stop_ids"),
    [
        ("llada", 508, {504, 507}),  # end of text, end of turn
        ("dream", 508, {504, 510}),
        ("lladamoe", 508, {504, 511}),
        ("llada2", 508, {504, 511}),
        ("sdar", 508, {504, 510}),
        ("fastdllm2", 508, {504, 510}),
    ],
)
def test_special_ids_come_from_the_tokenizer_by_their_text(name: str, mask_id: int, stop_ids: set[int]) -> None:
    spec = family_model(name).spec
    assert spec.mask_id == mask_id
    assert set(spec.eos_ids) == stop_ids


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_routers_and_rotary_tables_stay_in_float32(dtype: str) -> None:
    model = load_model(GOLDEN / "llada2" / "ckpt", dtype=dtype, device="cpu")
    assert model.inverse_frequencies.dtype == torch.float32
    routers = [p for name, p in model.named_parameters() if "router" in name]
    assert routers
    assert all(p.dtype == torch.float32 for p in routers)
