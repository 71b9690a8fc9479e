"""openPangu-7B-Diffusion, of which no reference outputs exist: a made-up checkpoint against its forward and loop."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from psd_core.batch import build_batch
from psd_core.block import BlockState
from psd_core.config import POLICY_NAMES, AcceptanceName, CacheName, DecoderConfig, PolicyName
from psd_core.errors import CheckpointError
from psd_core.kvcache.modes import CAUSAL_CACHES, Window
from psd_core.kvcache.store import KVStore
from psd_core.models.checkpoint import open_checkpoint
from psd_core.models.layers import DiffusionDecoder
from psd_core.models.loader import load_model
from psd_core.models.published import published_spec
from psd_core.plan import Span, StepPlan
from psd_core.request import Request
from psd_core.runner import Runner
from tests.engine.drive import Driver, run_alone
from tests.engine.openpangu import (
    BLOCK,
    Order,
    Tensors,
    authors_loop,
    config_of,
    highest,
    lead,
    negative_entropy,
    twin_logits,
    write_openpangu,
)

VOCAB, MASK = 90, 89
# Of the authors' loop: how positions are ordered, from which value on more than one is taken; and settings here.
RULES: dict[str, tuple[Order, float | None, DecoderConfig]] = {
    "origin": (highest, None, DecoderConfig(policy="greedy", block_length=BLOCK)),
    "entropy": (negative_entropy, None, DecoderConfig(policy="entropy", gamma=0.0, block_length=BLOCK)),
    "topk_margin": (lead, None, DecoderConfig(policy="margin", threshold=1.0, block_length=BLOCK)),
    "confidence_threshold": (highest, 0.5, DecoderConfig(threshold=0.5, block_length=BLOCK)),
}
PROMPT = [13, 76, 61, 71, 82, 24, 19, 5, 40, 41, 7]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("openpangu")
    write_openpangu(folder, VOCAB, MASK, mask_token_id=MASK)
    return folder


@pytest.fixture(scope="module")
def tensors(checkpoint: Path) -> Tensors:
    tensors: Tensors = load_file(checkpoint / "model.safetensors")
    return tensors


@pytest.fixture(scope="module")
def model(checkpoint: Path) -> DiffusionDecoder:
    return load_model(checkpoint, device="cpu")


def engine_logits(model: DiffusionDecoder, token_ids: list[int], open_start: int) -> torch.Tensor:
    """[T, V] of one row without a cache."""
    ids = np.asarray([token_ids], np.int64)
    window = Window(0, len(token_ids), 0)
    states = (BlockState.masked(1),)
    span = Span(Request("r", (1,), 1), "denoise", states, ids, window, 0, None, None, open_start)
    batch = build_batch(StepPlan((span,)), False, model.dtype, model.device)
    spec = model.spec
    with torch.inference_mode():
        store = KVStore(spec.num_layers, 0, spec.num_kv_heads, spec.head_dim, model.dtype, model.device)
        return model.project(model(batch, store))


@pytest.mark.parametrize("open_start", [0, 1, 9, 14])
def test_logits_equal_the_twin(model: DiffusionDecoder, tensors: Tensors, open_start: int) -> None:
    token_ids = torch.randint(0, VOCAB, (14,), generator=torch.Generator().manual_seed(1)).tolist()
    expected = twin_logits(tensors, token_ids, open_start)
    assert expected.std() > 1
    torch.testing.assert_close(engine_logits(model, token_ids, open_start), expected, atol=5e-5, rtol=0)


def test_the_twin_is_llama_with_biases_as_transformers_has_it(checkpoint: Path, tensors: Tensors) -> None:
    """Under both attentions: causal, and the last positions open."""
    # In a process of its own: transformers brings half the world along.
    code = (
        "import json, sys, torch\n"
        "from safetensors.torch import load_file, save_file\n"
        "from transformers import LlamaConfig, LlamaForCausalLM\n"
        "folder, ids = sys.argv[1], json.loads(sys.argv[2])\n"
        "config = json.load(open(folder + '/config.json'))\n"
        "names = ('hidden_size', 'intermediate_size', 'num_attention_heads', 'num_hidden_layers', 'vocab_size',\n"
        "         'num_key_value_heads', 'rms_norm_eps', 'max_position_embeddings', 'tie_word_embeddings')\n"
        "rope = {'rope_type': 'default', 'rope_theta': config['rope_theta']}\n"
        "llama = LlamaForCausalLM(LlamaConfig(attention_bias=True, mlp_bias=False, attn_implementation='eager',\n"
        "                                     rope_parameters=rope, **{name: config[name] for name in names})).eval()\n"
        "tensors = load_file(folder + '/model.safetensors')\n"
        "llama.load_state_dict({name: t for name, t in tensors.items() if 'inv_freq' not in name})\n"
        "results = {}\n"
        "for start in (9, 14):\n"
        "    sees = torch.tril(torch.ones(14, 14, dtype=torch.bool))\n"
        "    sees[start:] = True\n"
        "    bias = torch.zeros(14, 14).masked_fill(~sees, torch.finfo(torch.float32).min)[None, None]\n"
        "    with torch.no_grad():\n"
        "        results[str(start)] = llama(torch.tensor([ids]), attention_mask=bias).logits[0].contiguous()\n"
        "save_file(results, sys.argv[3])\n"
    )
    token_ids = torch.randint(0, VOCAB, (14,), generator=torch.Generator().manual_seed(2)).tolist()
    file = checkpoint / "llama_logits"
    subprocess.run([sys.executable, "-c", code, str(checkpoint), json.dumps(token_ids), str(file)], check=True)
    for start, logits in load_file(file).items():
        torch.testing.assert_close(twin_logits(tensors, token_ids, int(start)), logits, atol=5e-5, rtol=0)


@pytest.mark.parametrize("num_prompt", [1, 8, 11])
@pytest.mark.parametrize("rule", RULES)
def test_the_authors_rules_are_policies_here(
    model: DiffusionDecoder, tensors: Tensors, rule: str, num_prompt: int
) -> None:
    """Token for token and forward for forward; they also write the last block to their cache, for nobody."""
    order, threshold, settings = RULES[rule]
    prompt = PROMPT[:num_prompt]
    expected, forwards = authors_loop(tensors, prompt, 3 * BLOCK, order, threshold, 1, MASK, None)
    ways: tuple[tuple[int, CacheName], ...] = ((0, "none"), (0, "causal"), (3, "causal"))
    for depth, cache in ways:
        decoder = replace(settings, cache=cache, draft_depth=depth)
        outcome, end = run_alone(model, Request("r", tuple(prompt), 3 * BLOCK, decoder))
        assert outcome.token_ids == expected
        if depth == 0:
            assert end.figures.forwards == forwards - 1
        else:
            assert end.figures.forwards <= forwards - 1


def test_a_text_ends_where_the_authors_cut_it(model: DiffusionDecoder, tensors: Tensors) -> None:
    free, _ = authors_loop(tensors, PROMPT, 3 * BLOCK, highest, 0.5, 1, MASK, None)
    for stop_id in {free[0], free[BLOCK + 3], free[-1]}:
        expected, forwards = authors_loop(tensors, PROMPT, 3 * BLOCK, highest, 0.5, 1, MASK, stop_id)
        decoder = DecoderConfig(block_length=BLOCK, cache="causal", threshold=0.5, draft_depth=0)
        request = Request("r", tuple(PROMPT), 3 * BLOCK, decoder, stop_ids=frozenset({stop_id}))
        outcome, end = run_alone(model, request)
        assert outcome.token_ids == expected[: expected.index(stop_id) + 1]
        assert end.figures.forwards <= forwards


@pytest.mark.parametrize("num_small_blocks", [2, 4])
def test_small_blocks_are_reproduced_over_the_engine(
    model: DiffusionDecoder, tensors: Tensors, num_small_blocks: int
) -> None:
    """No setting of this project fills a block in parts; the loop is driven from outside, over runner and cache."""
    num_prompt, stop = len(PROMPT), len(PROMPT) + 2 * BLOCK
    expected, forwards = authors_loop(tensors, PROMPT, 2 * BLOCK, highest, 0.5, num_small_blocks, MASK, None)
    runner = Runner(model, stop + BLOCK + 1, 1024, (MASK,))
    ids: list[int | None] = [*PROMPT, *[None] * (2 * BLOCK)]
    calls = 0

    def forward(first: int, last: int, window: Window, open_start: int) -> list[tuple[int, float]]:
        """(token, confidence) of the positions first … last - 1."""
        nonlocal calls
        calls += 1
        fed = [MASK if token is None else token for token in ids[window.start : window.stop]]
        state = BlockState.masked(last - first)
        request = Request("r", tuple(PROMPT), 2 * BLOCK)
        row = np.asarray([fed], np.int64)
        span = Span(request, "denoise", (state,), row, window, first, 0, None, open_start)
        ((found,),) = runner.run(StepPlan((span,)))
        assert found is not None
        return list(zip(found.token_ids.tolist(), found.confidence.tolist(), strict=True))

    written = 0
    for start in range(num_prompt, stop, BLOCK):
        ((ids[start], _),) = forward(start, start + 1, Window(written, start, written), start)
        written, small = start, BLOCK // num_small_blocks
        for first in range(start, start + BLOCK, small):
            while None in ids[first : first + small]:
                found = forward(first, first + small, Window(start - 1, start + BLOCK, start), start)
                open_ones = [place for place in range(small) if ids[first + place] is None]
                best = max(open_ones, key=lambda place: found[place][1])
                for place in open_ones:
                    if place == best or found[place][1] > 0.5:
                        ids[first + place] = found[place][0]
    assert ids[num_prompt:] == expected
    assert calls == forwards - 1


@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_drafts_caches_and_company_change_nothing(model: DiffusionDecoder, policy: PolicyName) -> None:
    def request(name: str, length: int, cache: CacheName, depth: int, rule: AcceptanceName = "exact") -> Request:
        decoder = DecoderConfig(
            policy=policy,
            threshold=0.5,
            block_length=BLOCK,
            cache=cache,
            draft_depth=depth,
            acceptance=rule,
        )
        return Request(name, tuple(PROMPT[:length]), 21, decoder, stop_ids=frozenset({3}))

    plain = {length: run_alone(model, request("r", length, "none", 0)) for length in (3, 8, 11)}
    driver = Driver(model)
    for length in plain:
        for depth in range(0, 8, 2):
            for cache in CAUSAL_CACHES:
                driver.add(request(f"{length}-{depth}-{cache}", length, cache, depth))
                driver.step()
        driver.add(request(f"{length}-token", length, "causal", 3, "token"))
    driver.run()
    for name, outcome in driver.outcomes.items():
        if name.endswith("token"):
            continue
        expected, end = plain[int(name.split("-")[0])]
        assert outcome.token_ids == expected.token_ids, name
        assert outcome.finished is not None
        assert outcome.finished.figures.forwards <= end.figures.forwards


Edit = Callable[[Tensors], object]
LAYER = "model.layers.1.self_attn"


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda t: t.pop(f"{LAYER}.o_proj.bias"), f"missing: {LAYER}.o_proj.bias"),
        (lambda t: t.update({"model.layers.1.mlp.up_proj.bias": torch.zeros(80)}), "unexpected: model.layers.1.mlp.up"),
        (lambda t: t.update({f"{LAYER}.o_proj.bias": torch.zeros(49)}), r"o_proj.bias has shape \[49\], .* \[48\]"),
        (lambda t: t[f"{LAYER}.o_proj.bias"][3:4].fill_(float("nan")), "o_proj.bias holds values that are not finite"),
        (lambda t: t[f"{LAYER}.rotary_emb.inv_freq"].mul_(1.02), "inv_freq contradicts config.json, from which it"),
        (lambda t: t[f"{LAYER}.rotary_emb.inv_freq"].fill_(float("nan")), "inv_freq contradicts config.json"),
        (lambda t: t.update({f"{LAYER}.rotary_emb.inv_freq": torch.ones(5)}), r"inv_freq has shape \[5\], .* \[6\]"),
    ],
)
def test_wrong_tensors_are_named(tmp_path: Path, edit: Edit, message: str) -> None:
    tensors = write_openpangu(tmp_path, VOCAB, MASK, mask_token_id=MASK)
    edit(tensors)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=message):
        load_model(tmp_path, device="cpu")


def test_rotary_tables_may_be_missing_or_rounded(tmp_path: Path, model: DiffusionDecoder) -> None:
    tensors = write_openpangu(tmp_path, VOCAB, MASK, mask_token_id=MASK)
    tensors[f"{LAYER}.rotary_emb.inv_freq"] = tensors[f"{LAYER}.rotary_emb.inv_freq"].bfloat16()
    del tensors["model.layers.0.self_attn.rotary_emb.inv_freq"]
    save_file(tensors, tmp_path / "model.safetensors")
    assert torch.equal(load_model(tmp_path, device="cpu").inverse_frequencies, model.inverse_frequencies)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"bias": False}, "bias = False is not supported, only True"),
        ({"layer_types": ["sliding_attention", "full_attention"]}, r"layer_types = \['sliding_attention'"),
        ({"rotary_percent": 0.25}, "rotary_percent = 0.25 is not supported, only 1.0"),
        ({"mask_token_id": 2}, "token id 2 is the mask and also ends a text"),
        ({"_name_or_path": None}, "only its name tells a diffusion model from them: if it is one"),
    ],
)
def test_relatives_with_other_layers_are_refused(tmp_path: Path, values: dict[str, object], message: str) -> None:
    """openPangu-R-7B-2512 and openPangu-Embedded-7B have the same architecture's name."""
    (tmp_path / "config.json").write_text(json.dumps(config_of(VOCAB, mask_token_id=MASK) | values))
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(tmp_path)


def test_a_folder_or_hub_name_tells_it_from_an_autoregressive_one(tmp_path: Path) -> None:
    folder = tmp_path / "models--openpangu--openPangu-7B-Diffusion-Base" / "snapshots" / "0123"
    folder.mkdir(parents=True)
    config = config_of(VOCAB, mask_token_id=MASK) | {"_name_or_path": None, "block_length": None}
    (folder / "config.json").write_text(json.dumps(config))
    checkpoint = open_checkpoint(folder)
    assert checkpoint.spec.block_length == 32
    assert checkpoint.spec.attention == "context-causal"
    assert "European Union" in checkpoint.notices[0]


def test_the_published_shape_has_the_published_size() -> None:
    """total_parameters and total_size of its index: float32, with 34 tables of 64 frequencies."""
    spec = published_spec("openPangu-7B-Diffusion")
    assert spec.num_parameters == 8_030_887_936
    assert 4 * (spec.num_parameters + 34 * 64) == 32_123_560_448
    assert (spec.mask_id, spec.eos_ids) == (45830, (2, 45892))
