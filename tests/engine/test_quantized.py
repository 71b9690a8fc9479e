"""Matrices of 8-bit integers: rounded while they are read, multiplied as their plain twin does, alike on every rank."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from benchmarks.loading import measure, scaled_config, write_checkpoint
from demo_model.tasks import problems
from psd_core.assets import demo_path
from psd_core.config import DecoderConfig, EngineConfig
from psd_core.errors import CheckpointError, ConfigError
from psd_core.models.group import Alone
from psd_core.models.layers import DiffusionDecoder
from psd_core.models.loader import load_model
from psd_core.models.memory import context_bytes, rank_bytes, weight_bytes
from psd_core.models.parameters import SCALE_SUFFIX
from psd_core.models.published import published_spec
from psd_core.models.quantized import LARGEST, plain_product, product, quantize
from psd_core.models.shard import Shard, kept
from psd_core.request import Request
from server.tokenizer import Tokenizer
from tests.engine.drive import Driver

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
FAMILIES = ("llada", "llada_tied", "dream", "sdar", "llada2", "lladamoe")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
Q_PROJ = "model.transformer.blocks.0.q_proj.weight"


def random_matrix(num_out: int, num_in: int) -> torch.Tensor:
    """Rows of very different sizes, one of them all zeros."""
    generator = torch.Generator().manual_seed(num_out + num_in)
    sizes = torch.logspace(-3, 0, num_out)[:, None]
    weight: torch.Tensor = torch.randn(num_out, num_in, generator=generator) / num_in**0.5 * sizes
    if num_out > 1:
        weight[num_out // 2] = 0.0
    return weight


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("num_out", "num_in"),
    [(1, 1), (5, 3), (96, 64), (1500, 1024)],  # the last takes more than one piece
)
def test_a_product_is_that_of_its_plain_twin(num_out: int, num_in: int, dtype: torch.dtype) -> None:
    values, scale = quantize(random_matrix(num_out, num_in))
    bias = torch.linspace(-1, 1, num_out).to(dtype)
    tolerance = max(1e-5, 4 * torch.finfo(dtype).eps)
    for num_tokens in (0, 1, 7, 130):
        hidden = torch.randn(num_tokens, num_in, generator=torch.Generator().manual_seed(num_tokens)).to(dtype)
        for added in (None, bias):
            found = product(hidden, values, scale, added)
            assert (found.shape, found.dtype) == ((num_tokens, num_out), dtype)
            plain = plain_product(hidden, values, scale, added)
            torch.testing.assert_close(found, plain, rtol=tolerance, atol=tolerance)
        exact = hidden.double() @ (values.double() * scale.double()[:, None]).T
        torch.testing.assert_close(product(hidden, values, scale).double(), exact, rtol=tolerance, atol=tolerance)


def test_sums_of_whole_steps_do_not_exceed_float16() -> None:
    values, scale = quantize(torch.full((4, 1024), 0.01))
    hidden = torch.full((2, 1024), 10.0, dtype=torch.float16)  # 1024 · 10 · 127 steps is beyond 65,504
    torch.testing.assert_close(product(hidden, values, scale).float(), torch.full((2, 4), 102.4), rtol=0.01, atol=0.0)


def test_a_value_is_off_by_half_a_step_of_its_row_at_most() -> None:
    weight = random_matrix(200, 300)
    values, scale = quantize(weight)
    error = (values.float() * scale[:, None] - weight).abs()
    assert bool((error <= 0.5001 * scale[:, None]).all())
    assert (values.abs().amax(dim=1) == LARGEST * weight.any(dim=1)).all(), "every step is used"
    assert not values[100].any(), "zeros stay zeros"


@pytest.mark.parametrize("name", FAMILIES)
def test_the_matrices_of_the_layers_are_quantised_and_nothing_else(name: str) -> None:
    plain = load_model(GOLDEN / name / "ckpt", "float32", "cpu")
    model = load_model(GOLDEN / name / "ckpt", "float32", "cpu", quantization="int8")
    found = dict(model.named_parameters())
    for parameter_name, parameter in plain.named_parameters():
        is_matrix = parameter.dim() > 1 and parameter_name.startswith("layers.") and "router" not in parameter_name
        scale = found.pop(parameter_name + SCALE_SUFFIX, None)
        assert (scale is not None) == is_matrix, parameter_name
        if scale is None:
            assert torch.equal(found[parameter_name], parameter), parameter_name
        else:
            values, scales = quantize(parameter.flatten(0, -2))
            assert torch.equal(found[parameter_name].flatten(0, -2), values), parameter_name
            assert torch.equal(scale.flatten(), scales), parameter_name
    assert len(found) == len(list(plain.named_parameters()))
    held = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    assert held == weight_bytes(model.spec, torch.float32, "int8") < weight_bytes(model.spec, torch.float32)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_quantised_model_decodes_as_one_whose_weights_were_rounded_beforehand(name: str) -> None:
    quantised = load_model(GOLDEN / name / "ckpt", "float32", "cpu", quantization="int8")
    rounded = load_model(GOLDEN / name / "ckpt", "float32", "cpu")
    found = dict(quantised.named_parameters())
    for parameter_name, parameter in rounded.named_parameters():
        if (scale := found.get(parameter_name + SCALE_SUFFIX)) is not None:
            parameter.copy_(found[parameter_name] * scale[..., None])
    length = quantised.spec.block_length
    decoder = DecoderConfig(threshold=0.4, block_length=length or 8, cache="causal" if length else "dual")
    drivers = [Driver(model) for model in (quantised, rounded)]
    for driver in drivers:
        for depth in (0, 3):
            driver.add(Request(str(depth), tuple(range(100, 117)), 20, replace(decoder, draft_depth=depth)))
        driver.run()
    for request_id, outcome in drivers[0].outcomes.items():
        assert outcome.token_ids == drivers[1].outcomes[request_id].token_ids
        assert outcome.logprobs == pytest.approx(drivers[1].outcomes[request_id].logprobs, abs=1e-3)


@pytest.mark.parametrize("name", FAMILIES)
def test_ranks_hold_parts_of_what_one_alone_would_hold(name: str) -> None:
    """The scale of a row is that of the whole row, whatever columns a rank keeps."""
    checkpoint = GOLDEN / name / "ckpt"
    whole = load_model(checkpoint, "float32", "cpu", quantization="int8")
    for rank in range(2):
        shard = Shard(rank, 2)
        part = load_model(checkpoint, "float32", "cpu", group=Alone(shard), quantization="int8")
        held = sum(parameter.numel() * parameter.element_size() for parameter in part.parameters())
        assert held == rank_bytes(whole.spec, torch.float32, shard, "int8")
        for parameter_name, parameter in whole.named_parameters():
            what = kept(parameter_name.removesuffix(SCALE_SUFFIX), whole.spec, shard)
            runs = what.rows or ((what.experts,) if what.experts else (range(parameter.shape[0]),))
            expected = parameter[[row for run in runs for row in run]]
            if what.columns is not None and not parameter_name.endswith(SCALE_SUFFIX):
                expected = expected[:, what.columns.start : what.columns.stop]
            assert torch.equal(part.get_parameter(parameter_name), expected), parameter_name


def test_values_that_cannot_be_scaled_are_refused_with_their_name(tmp_path: Path) -> None:
    checkpoint = Path(shutil.copytree(GOLDEN / "llada" / "ckpt", tmp_path / "ckpt"))
    file = checkpoint / "model-00001-of-00002.safetensors"
    tensors = load_file(file)
    for value, message in ((float("nan"), "not finite"), (float("-inf"), "not finite"), (1e6, "too large for float16")):
        spoiled = tensors[Q_PROJ].clone()
        spoiled.view(-1)[7] = value
        save_file(tensors | {Q_PROJ: spoiled}, file)
        with pytest.raises(CheckpointError, match=f"{Q_PROJ} holds values .*{message}"):
            load_model(checkpoint, "float16", "cpu", quantization="int8")
    load_model(checkpoint, "bfloat16", "cpu", quantization="int8")


def test_an_unknown_quantization_is_refused() -> None:
    with pytest.raises(ConfigError, match="quantization must be one of none, int8; got 'int4'"):
        load_model(GOLDEN / "llada" / "ckpt", quantization="int4")  # type: ignore[arg-type]  # the mistake itself


def test_loading_never_holds_the_matrices_in_their_own_type(tmp_path: Path) -> None:
    # Nearly all of this model is quantised: its weights in bfloat16, beside or before the integers, break the bound.
    write_checkpoint(tmp_path, scaled_config(num_layers=6, width=1024, vocab_size=2048), shard_bytes=1 << 26)
    loaded = measure(tmp_path, "bfloat16", "int8")
    assert 80 << 20 < loaded.weights < 90 << 20
    assert loaded.peak - loaded.before <= 1.1 * loaded.weights + (120 << 20)


def test_llada_8b_leaves_room_on_a_gpu_of_16_gb() -> None:
    """Weights, the logits of a chunk with two copies, and a cache for a full context, from the published shape."""
    spec, dtype = published_spec("LLaDA-8B"), torch.bfloat16
    model = DiffusionDecoder(spec, dtype, torch.device("meta"), quantization="int8")
    weights = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    assert weights == weight_bytes(spec, dtype, "int8")
    usable = 15 * 10**9  # the rest is the driver's and CUDA's
    assert weight_bytes(spec, dtype) > usable
    free = usable - weights
    assert free // 2 // context_bytes(spec, dtype) >= spec.max_positions, "the cache gets half of what is free"
    logits = 3 * EngineConfig().max_logit_rows * spec.vocab_size * torch.float32.itemsize
    assert logits <= free - free // 2


def test_the_built_in_model_answers_nearly_as_it_does_in_float() -> None:
    tokenizer = Tokenizer(demo_path())
    prompts = [tuple(tokenizer.encode_text(problem.prompt)) for problem in problems("held-out", 14, 7)]

    def answers(model: DiffusionDecoder) -> list[list[int]]:
        driver = Driver(model, EngineConfig(max_num_batched_tokens=1 << 14))
        for index, prompt in enumerate(prompts):
            decoder, stops = DecoderConfig(draft_depth=0), frozenset(model.spec.eos_ids)
            driver.add(Request(str(index), prompt, 32, decoder, stop_ids=stops))
        driver.run()
        return [driver.outcomes[str(index)].token_ids for index in range(len(prompts))]

    exact = answers(load_model(demo_path(), "float32", "cpu"))
    rounded = answers(load_model(demo_path(), "float32", "cpu", quantization="int8"))
    pairs = list(zip(exact, rounded, strict=True))
    num_equal = sum(one == other for pair in pairs for one, other in zip(*pair, strict=False))
    num_longer = sum(max(map(len, pair)) for pair in pairs)
    assert num_equal >= 0.8 * num_longer
