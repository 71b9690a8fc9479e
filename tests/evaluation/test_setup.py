"""From flags to who answers: what is given reaches the model, and what answers depend on is known by its digest."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
import torch

from server.cores import usable_cores
from server.evaluation.checkpoint import identify
from server.evaluation.flags import add_calibrate_flags, add_eval_flags
from server.evaluation.setup import make_source, read_settings
from server.terminal.source import SourceError


def parse(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_eval_flags(parser)
    return parser.parse_args(arguments)


def test_threads_reach_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert read_settings(parse("--threads", "3")).model.threads == 3
    calibration = argparse.ArgumentParser()
    add_calibrate_flags(calibration)
    assert read_settings(calibration.parse_args(["prompts.txt", "--threads", "3"])).model.threads == 3


@pytest.mark.parametrize(
    ("given", "omp", "told", "number"), [((), None, "measured", None), (("--threads", "1"), "2", 1, 1), ((), "1", 1, 1)]
)
def test_a_number_of_threads_that_is_measured_is_told_as_such(
    given: tuple[str, ...], omp: str | None, told: str | int, number: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that goes on later may measure another one, and must not be refused for it."""
    before = torch.get_num_threads()
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if omp is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", omp)  # torch itself has read it long ago
        torch.set_num_threads(int(omp))
    try:
        source = make_source(parse(*given), read_settings(parse(*given)), 1)
        assert source.facts["threads"] == told
        assert number is None or torch.get_num_threads() == number
        assert 1 <= torch.get_num_threads() <= usable_cores()
    finally:
        torch.set_num_threads(before)


def test_a_model_loaded_here_has_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PSD_TENSOR_PARALLEL_SIZE", "2")
    with pytest.raises(SourceError, match="tensor_parallel_size must be 1, got 2"):
        make_source(parse(), read_settings(parse()), 1)


def test_whatever_answers_depend_on_is_in_the_digest(tmp_path: Path) -> None:
    model, tokenizer, template = tmp_path / "model", tmp_path / "tokenizer", tmp_path / "template.jinja"
    for folder in (model, tokenizer):
        folder.mkdir()
    files = (
        model / "config.json",
        model / "model.safetensors",
        model / "chat_template.jinja",
        tokenizer / "tokenizer.json",
        tokenizer / "tokenizer.model",
        tokenizer / "merges.txt",
        template,
    )
    for file in files:
        file.write_text("{}")
    seen = {identify(model, tokenizer, str(template)), identify(model, model, None), identify(model, tokenizer, None)}
    assert len(seen) == 3
    for file in files:
        file.write_text("{} ")
        seen.add(identify(model, tokenizer, str(template)))
    assert len(seen) == 3 + len(files)
    (model / "README.md").write_text("of no account")
    assert identify(model, tokenizer, str(template)) in seen
