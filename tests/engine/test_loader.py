"""The loader refuses, with names, whatever is not exactly the checkpoint its config describes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from psd_core.errors import CheckpointError
from psd_core.models.loader import load_model, read_checkpoint

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
        (lambda t: t.update(extra=torch.zeros(2)), "unexpected or repeated: extra"),
        (lambda t: t.update({Q_PROJ: torch.zeros(64, 63)}), rf"{Q_PROJ} has shape \[64, 63\], .* \[64, 64\]"),
        (lambda t: t[Q_PROJ].view(-1)[5:6].fill_(float("nan")), f"{Q_PROJ} holds values that are not finite"),
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
        ({"mask_token_id": 7}, r"mask token '<\|mdm_mask\|>' has id 508 in tokenizer.json, but config.json says 7"),
        ({"n_kv_heads": 3}, "n_heads 4 is no multiple of n_kv_heads 3"),
    ],
)
def test_wrong_configs_are_named(checkpoint: Path, values: dict[str, object], message: str) -> None:
    edit_config(checkpoint, **values)
    with pytest.raises(CheckpointError, match=message):
        load_model(checkpoint)


def test_a_mask_id_outside_the_vocabulary_is_refused(checkpoint: Path) -> None:
    (checkpoint / "tokenizer.json").unlink()
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
    with pytest.raises(CheckpointError, match="device must be auto, cpu, cuda or cuda:N, got 'toaster'"):
        load_model(checkpoint, device="toaster")
    if not torch.cuda.is_available():
        with pytest.raises(CheckpointError, match="finds no CUDA device"):
            load_model(checkpoint, device="cuda")


def test_num_parameters_counts_the_checkpoint() -> None:
    _, spec = read_checkpoint(GOLDEN)
    stored = sum(t.numel() for file in GOLDEN.glob("*.safetensors") for t in load_file(file).values())
    assert spec.num_parameters == stored
