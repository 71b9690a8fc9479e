"""A server with --quantization int8 says so and answers as an engine with that model does."""

from __future__ import annotations

from pathlib import Path

import pytest

from psd_core.config import DecoderConfig
from psd_core.models.loader import load_model
from psd_core.request import Request
from server.cli import main
from server.tokenizer import Tokenizer
from tests.engine.drive import Driver
from tests.server.process import ServerProcess

PROMPT = "Sort these numbers: 7, 9, 4."


def test_a_quantised_model_is_served_and_told_of(model_path: Path, tmp_path: Path) -> None:
    model = load_model(model_path, "float32", "cpu", quantization="int8")
    driver = Driver(model)
    prompt = tuple(Tokenizer(model_path).encode_text(PROMPT))
    driver.add(Request("a", prompt, 16, DecoderConfig()))
    driver.run()
    with ServerProcess(model_path, tmp_path, ["--quantization", "int8"]) as process:
        answer = process.complete(prompt=PROMPT, max_tokens=16, ignore_eos=True, return_token_ids=True).json()
        assert answer["choices"][0]["token_ids"] == driver.outcomes["a"].token_ids
        assert "parameters, float32 and int8, loaded in" in process.log
        labels = f'architecture="{model.spec.architecture}",device="cpu",dtype="float32",quantization="int8"'
        assert process.metric(f"psd_model_info{{{labels}}}") == 1


def test_memory_is_told_for_a_quantised_model(model_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = [str(model_path), "--dtype", "bfloat16", "--device", "cpu"]
    assert main(["inspect", *settings, "--quantization", "int8"]) == 0
    assert "for the weights in bfloat16 and int8;" in capsys.readouterr().out
