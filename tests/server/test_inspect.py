"""psd inspect says what a checkpoint is and why it will not load, and loads nothing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from server.cli import main

GOLDEN = Path(__file__).parents[1] / "data" / "golden"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOLDEN / "llada2" / "ckpt", tmp_path / "ckpt"))


def test_a_good_checkpoint_is_described(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(checkpoint), "--dtype", "bfloat16", "--device", "cpu"]) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert lines["architecture"].startswith("LLaDA2MoeModelLM: LLaDA2.0")
    assert lines["attention"] == "block-causal, blocks of 32; caches none, causal"
    assert lines["loads"].startswith("yes")
    assert "130 tensors: 128 BF16, 2 F32" in lines["stored"]


def test_the_share_of_a_rank_is_told_or_why_there_is_none(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["--dtype", "float32", "--device", "cpu", "--tensor-parallel-size"]
    assert main(["inspect", str(checkpoint), *settings, "2"]) == 0
    (share,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("per rank")]
    assert share.endswith("of weights and 1 KiB of cache per token of context, on each of 2")
    assert main(["inspect", str(checkpoint), *settings, "4"]) == 1
    assert "tensor_parallel_size must divide the model's 2 key-value heads, got 4" in capsys.readouterr().out
    assert main(["inspect", str(checkpoint), *settings, "0"]) == 2


def test_every_fault_is_told_at_once(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = checkpoint / "model-00001-of-00002.safetensors"
    tensors = load_file(file)
    tensors.pop("model.layers.0.attention.dense.weight")
    save_file(tensors | {"extra": torch.zeros(1)}, file)
    (checkpoint / "tokenizer.json").write_text(json.dumps({"added_tokens": [{"id": 508, "content": "<|mask|>"}]}))
    assert main(["inspect", str(checkpoint)]) == 1
    printed = capsys.readouterr().out
    assert "loads          no" in printed
    assert "missing: model.layers.0.attention.dense.weight; unexpected: extra" in printed
    assert "tokenizer.json cannot be read" in printed


def test_a_checkpoint_that_is_not_served_says_what_is_missing(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps(config | {"architectures": ["NemotronLabsDiffusionModel"]}))
    assert main(["inspect", str(checkpoint)]) == 1
    assert "Nemotron-Labs-Diffusion needs YaRN positions" in capsys.readouterr().out


def test_a_wrong_path_is_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(tmp_path / "nowhere")]) == 2
    assert "is neither a folder nor a hub name" in capsys.readouterr().err
    assert main(["inspect", str(tmp_path)]) == 1
    assert "config.json does not exist" in capsys.readouterr().out
