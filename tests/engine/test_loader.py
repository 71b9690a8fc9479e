"""The loader refuses, with names, whatever is not exactly the checkpoint its config describes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from benchmarks.loading import measure, scaled_config, write_checkpoint
from psd_core.errors import CheckpointError
from psd_core.models.families import UNSUPPORTED
from psd_core.models.layers import DiffusionDecoder
from psd_core.models.loader import load_model, read_checkpoint
from psd_core.models.memory import weight_bytes
from psd_core.models.published import PUBLISHED, published_spec

GOLDEN = Path(__file__).parents[1] / "data" / "golden" / "llada" / "ckpt"
Q_PROJ = "model.transformer.blocks.0.q_proj.weight"
Tensors = dict[str, torch.Tensor]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOLDEN, tmp_path / "ckpt"))


def edit_tensors(checkpoint: Path, edit: Callable[[Tensors], object]) -> None:
    file = checkpoint / "model-00001-of-00002.safetensors"
    tensors = load_file(file)
    edit(tensors)
    save_file(tensors, file)


def edit_config(checkpoint: Path, **values: object) -> None:
    config = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps(config | values))


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda t: t.pop(Q_PROJ), f"missing: {Q_PROJ}"),
        (lambda t: t.update(extra=torch.zeros(2)), "unexpected: extra"),
        (lambda t: t.update({Q_PROJ: torch.zeros(64, 63)}), rf"{Q_PROJ} has shape \[64, 63\], .* \[64, 64\]"),
        (lambda t: t[Q_PROJ].view(-1)[5:6].fill_(float("nan")), f"{Q_PROJ} holds values that are not finite"),
        (lambda t: t[Q_PROJ].view(-1)[-1:].fill_(float("-inf")), f"{Q_PROJ} holds values that are not finite"),
        (
            lambda t: t.update({Q_PROJ: t[Q_PROJ].to(torch.int8)}),
            f"{Q_PROJ} is stored as I8, which is none of F64, F32",
        ),
    ],
)
def test_wrong_tensors_are_named(checkpoint: Path, edit: Callable[[Tensors], object], message: str) -> None:
    edit_tensors(checkpoint, edit)
    with pytest.raises(CheckpointError, match=message):
        load_model(checkpoint)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "architecture 'GPT2LMHeadModel' is not supported; known: LLaDA"),
        ({"architectures": []}, "architecture None"),
        ({"n_layers": None}, "n_layers must be an integer, got None"),
        ({"d_model": "64"}, "d_model must be an integer, got '64'"),
        ({"alibi": True}, "alibi = True is not supported, only False"),
        ({"activation_type": "gelu"}, "activation_type = 'gelu' is not supported"),
        ({"mask_token_id": 7}, r"mask token '<\|mdm_mask\|>' has id 508 in the tokenizer of .*, but 7 in config.json"),
        ({"n_kv_heads": 3}, "n_heads 4 is no multiple of n_kv_heads 3"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_parameters = {'rope_type': 'yarn'} is not supported"),
        ({"quantization_config": {"bits": 4}}, "quantization_config = {'bits': 4} is not supported"),
        ({"n_layers": 0}, "n_layers must be at least 1, got 0"),
        ({"rope_theta": -1}, "rope_theta must be a positive number, got -1"),
        ({"d_model": 12}, "rotated features per head must be even and at most 3, got 3"),
    ],
)
def test_wrong_configs_are_named(checkpoint: Path, values: dict[str, object], message: str) -> None:
    edit_config(checkpoint, **values)
    with pytest.raises(CheckpointError, match=message):
        load_model(checkpoint)


def test_a_mask_id_outside_the_vocabulary_is_refused(checkpoint: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (checkpoint / name).unlink()
    edit_config(checkpoint, mask_token_id=512)
    with pytest.raises(CheckpointError, match=r"mask_token_id 512 is outside the vocabulary \(512\)"):
        load_model(checkpoint)


def test_missing_and_damaged_files_are_named(checkpoint: Path) -> None:
    (checkpoint / "model-00002-of-00002.safetensors").write_bytes(b"half a file")
    with pytest.raises(CheckpointError, match=r"model-00002-of-00002\.safetensors cannot be read"):
        load_model(checkpoint)
    (checkpoint / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"is incomplete, missing: model-00002-of-00002\.safetensors"):
        load_model(checkpoint)
    (checkpoint / "model.safetensors.index.json").unlink()
    with pytest.raises(CheckpointError, match=r"neither model\.safetensors nor"):
        load_model(checkpoint)
    with pytest.raises(CheckpointError, match="does not exist"):
        load_model(checkpoint / "elsewhere")


def test_an_index_cannot_name_files_outside_its_folder(checkpoint: Path) -> None:
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../evil.safetensors"}}))
    with pytest.raises(CheckpointError, match="names files outside its folder"):
        load_model(checkpoint)


def test_unknown_dtypes_and_absent_devices_are_refused(checkpoint: Path) -> None:
    with pytest.raises(CheckpointError, match="dtype must be one of auto, float32"):
        load_model(checkpoint, dtype="int4")
    for device in ("toaster", "cuda:", "cuda:-1", "mps"):
        with pytest.raises(CheckpointError, match=f"device must be auto, cpu, cuda or cuda:N, got '{device}'"):
            load_model(checkpoint, device=device)
    if not torch.cuda.is_available():
        with pytest.raises(CheckpointError, match="finds no CUDA device"):
            load_model(checkpoint, device="cuda")


def test_num_parameters_counts_the_checkpoint() -> None:
    _, spec = read_checkpoint(GOLDEN)
    stored = sum(t.numel() for file in GOLDEN.glob("*.safetensors") for t in load_file(file).values())
    assert spec.num_parameters == stored


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_weights_arrive_in_the_dtype_asked_for(checkpoint: Path, dtype: torch.dtype) -> None:
    model = load_model(checkpoint, dtype=str(dtype).removeprefix("torch."))
    stored = load_file(checkpoint / "model-00001-of-00002.safetensors")
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}
    assert torch.equal(model.get_parameter("layers.0.qkv.weight")[:64], stored[Q_PROJ].to(dtype))


def test_a_value_too_large_for_the_dtype_is_refused_with_its_name(checkpoint: Path) -> None:
    edit_tensors(checkpoint, lambda t: t[Q_PROJ].view(-1)[7:8].fill_(1e6))
    with pytest.raises(CheckpointError, match=f"{Q_PROJ} holds values too large for float16; try --dtype bfloat16"):
        load_model(checkpoint, dtype="float16")
    load_model(checkpoint, dtype="bfloat16")


def test_a_tensor_in_two_files_is_refused(checkpoint: Path) -> None:
    other = checkpoint / "model-00002-of-00002.safetensors"
    save_file(load_file(other) | {Q_PROJ: torch.zeros(64, 64)}, other)
    with pytest.raises(CheckpointError, match=f"{Q_PROJ} stands in two files: model-00001-of-00002.safetensors and"):
        load_model(checkpoint)


def test_a_file_cut_short_is_refused_before_memory_is_taken(checkpoint: Path) -> None:
    file = checkpoint / "model-00001-of-00002.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(
        CheckpointError, match=r"model-00001.* cannot be read, perhaps it was not downloaded to its end"
    ):
        load_model(checkpoint)


def test_tensors_behind_a_header_of_odd_length_load_alike(checkpoint: Path) -> None:
    expected = load_model(checkpoint).state_dict()
    for file in checkpoint.glob("*.safetensors"):
        content = file.read_bytes()
        length = int.from_bytes(content[:8], "little")
        header = content[8 : 8 + length].rstrip()
        header += b" " * (1 - len(header) % 2)
        assert len(header) % 2 == 1
        file.write_bytes(len(header).to_bytes(8, "little") + header + content[8 + length :])
    loaded = load_model(checkpoint).state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in expected.items())


def test_progress_ends_at_the_size_of_all_tensors(checkpoint: Path) -> None:
    seen: list[tuple[int, int]] = []
    load_model(checkpoint, on_progress=lambda done, total: seen.append((done, total)))
    size = sum(tensor.nbytes for file in checkpoint.glob("*.safetensors") for tensor in load_file(file).values())
    assert seen == sorted(seen)
    assert seen[-1] == (size, size)


@pytest.mark.parametrize("architecture", UNSUPPORTED)
def test_known_but_unsupported_architectures_say_what_is_missing(checkpoint: Path, architecture: str) -> None:
    edit_config(checkpoint, architectures=[architecture])
    with pytest.raises(CheckpointError) as caught:
        load_model(checkpoint)
    assert UNSUPPORTED[architecture] in str(caught.value)


def test_loading_takes_little_more_memory_than_the_weights(tmp_path: Path) -> None:
    # A second copy of these weights, in memory or as pages that stay mapped, would break the bound.
    write_checkpoint(tmp_path, scaled_config(num_layers=4, width=512, vocab_size=65536), shard_bytes=1 << 26)
    loaded = measure(tmp_path, "bfloat16")
    assert loaded.weights > 150 << 20
    assert loaded.peak - loaded.before <= 1.1 * loaded.weights + (100 << 20)


@pytest.mark.parametrize("name", PUBLISHED)
def test_memory_is_computed_as_it_is_taken(name: str) -> None:
    spec = published_spec(name)
    model = DiffusionDecoder(spec, torch.bfloat16, torch.device("meta"))
    parameters = list(model.parameters())
    assert spec.num_parameters == sum(parameter.numel() for parameter in parameters)
    routers = sum(parameter.numel() for parameter in parameters if parameter.dtype == torch.float32)
    assert weight_bytes(spec, torch.bfloat16) == 2 * spec.num_parameters + 2 * routers


def test_published_shapes_have_the_published_sizes() -> None:
    billions = {name: published_spec(name).num_parameters / 1e9 for name in PUBLISHED}
    assert billions["LLaDA-8B"] == pytest.approx(8.02, abs=0.01)
    assert billions["Dream-v0-7B"] == pytest.approx(7.62, abs=0.01)
    assert billions["LLaDA2.0-mini"] == pytest.approx(16.3, abs=0.1)
    assert billions["SDAR-30B-A3B"] == pytest.approx(30.5, abs=0.1)


@pytest.mark.parametrize(
    ("folder", "values", "block_length"),
    [
        ("SDAR-8B-Chat-b32", {"block_size": None}, 32),
        ("SDAR-8B-Chat", {"block_size": None}, 4),
        ("SDAR-8B-Chat-b32", {"block_size": 16}, 16),
    ],
)
def test_a_block_length_comes_from_config_or_name(
    tmp_path: Path, folder: str, values: dict[str, object], block_length: int
) -> None:
    checkpoint = Path(shutil.copytree(GOLDEN.parents[1] / "sdar" / "ckpt", tmp_path / folder))
    edit_config(checkpoint, **values)
    assert read_checkpoint(checkpoint)[1].block_length == block_length


@pytest.mark.parametrize("family", ["llada_tied", "sdar"])
def test_a_stored_head_is_accepted_where_it_is_the_embedding(tmp_path: Path, family: str) -> None:
    checkpoint = Path(shutil.copytree(GOLDEN.parents[1] / family / "ckpt", tmp_path / "ckpt"))
    llada = family == "llada_tied"
    head, embedding = (
        ("model.transformer.ff_out.weight", "model.transformer.wte.weight")
        if llada
        else ("lm_head.weight", "model.embed_tokens.weight")
    )
    edit_config(checkpoint, **{"weight_tying" if llada else "tie_word_embeddings": True})
    (checkpoint / "model.safetensors.index.json").unlink()
    tensors = {name: t for file in checkpoint.glob("*-of-*") for name, t in load_file(file).items()}
    save_file(tensors | {head: tensors[embedding].clone()}, checkpoint / "model.safetensors")
    model = load_model(checkpoint, device="cpu")
    assert model.head is model.embedding
    save_file(tensors | {head: tensors[embedding] + 1}, checkpoint / "model.safetensors")
    with pytest.raises(CheckpointError, match=f"tensor {head} is not equal to the embedding"):
        load_model(checkpoint)
