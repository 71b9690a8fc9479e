"""Settings: command line before environment before defaults, and a wrong value names flag, limit and value."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from psd_core.admission import Limits
from psd_core.errors import ConfigError
from server.cores import usable_cores
from server.settings import fit_decoder, resolve


def test_the_command_line_wins_over_the_environment() -> None:
    assert resolve({"port": ["1"]}, {"PSD_PORT": "2"}).http.port == 1
    assert resolve({}, {"PSD_PORT": "2"}).http.port == 2
    assert resolve({}, {}).http.port == 8000


def test_repeated_flags_and_comma_lists_are_the_same() -> None:
    given = resolve({"api_key": ["a", "b"]}, {}).http.api_keys
    assert [key.name for key in given] == ["key-1", "key-2"]
    assert resolve({}, {"PSD_API_KEY": "a,b"}).http.api_keys == given


@pytest.mark.parametrize(
    ("flag", "value", "words"),
    [
        ("port", "70000", ("--port", "65535", "70000")),
        ("threshold", "nan", ("--threshold", "between 0 and 1", "nan")),
        ("policy", "fastest", ("--policy", "greedy", "fastest")),
        ("draft_increment", "0", ("--draft-increment", "between 1", "policy", "0")),
        ("draft_depth", "deep", ("--draft-depth", "between 0 and 32", "auto", "deep")),
        ("device", "tpu", ("--device", "cuda:N", "tpu")),
        ("quantization", "int4", ("--quantization", "none, int8", "int4")),
        ("ssl_keyfile", "k.pem", ("--ssl-certfile",)),
    ],
)
def test_a_wrong_value_names_flag_limit_and_value(flag: str, value: str, words: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve({flag: [value]}, {})
    assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize("option", ["compile", "cuda_graphs"])
def test_what_the_ranks_of_a_model_cannot_share_is_refused(option: str) -> None:
    with pytest.raises(ConfigError, match=f"--{option.replace('_', '-')} needs --tensor-parallel-size 1, got 2"):
        resolve({option: ["true"], "tensor_parallel_size": ["2"]}, {})
    assert resolve({"tensor_parallel_size": ["2"]}, {}).model.cuda_graphs is False


def test_a_wrong_variable_is_named() -> None:
    with pytest.raises(ConfigError, match="PSD_MAX_NUM_SEQS"):
        resolve({}, {"PSD_MAX_NUM_SEQS": "many"})


def test_threads_are_at_most_the_cores_shared_unless_somebody_said_otherwise() -> None:
    cores = usable_cores()
    assert resolve({}, {}).model.max_threads == cores
    assert resolve({"replicas": ["64"]}, {}).model.max_threads == max(1, cores // 64)
    assert resolve({"threads": ["3"]}, {"OMP_NUM_THREADS": "5"}).model.threads == 3
    left_to_torch = resolve({}, {"OMP_NUM_THREADS": "5"}).model
    assert (left_to_torch.threads, left_to_torch.max_threads) == (0, 0)


@pytest.mark.parametrize(("text", "most"), [("100000 100000", 1), ("150000 100000", 1), ("50000 100000", 1)])
def test_a_containers_quota_bounds_the_cores(text: str, most: int, tmp_path: Path) -> None:
    file = tmp_path / "cpu.max"
    file.write_text(text)
    assert usable_cores(file) == most
    file.write_text("max 100000")
    assert usable_cores(file) == usable_cores(tmp_path / "absent") == len(os.sched_getaffinity(0))


def test_a_key_never_shows_in_messages_or_representations() -> None:
    with pytest.raises(ConfigError) as caught:
        resolve({"api_key": ["my secret"]}, {})
    assert "my secret" not in str(caught.value)
    assert "sesame" not in repr(resolve({"api_key": ["sesame"]}, {}))


def test_a_kubernetes_service_link_is_not_a_port() -> None:
    assert resolve({}, {"PSD_PORT": "tcp://10.0.0.1:8000"}).http.port == 8000


@pytest.mark.parametrize(
    "flags", [["--port", "x"], ["--model", "/no/such/folder"], ["--nonsense"], ["--cuda-graphs", "--device", "cpu"]]
)
def test_wrong_usage_exits_with_2(flags: list[str]) -> None:
    command = [sys.executable, "-m", "server.cli", "serve", *flags]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=30, cwd=Path(__file__).parents[2], check=False
    )
    assert ended.returncode == 2
    assert flags[-1] in ended.stderr


def test_the_api_process_never_imports_torch() -> None:
    code = "import sys, server.run; assert not {'torch', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, cwd=Path(__file__).parents[2])


def test_what_was_not_given_follows_the_model_and_what_does_not_suit_it_fails() -> None:
    full = Limits(512, 100, 1000, None, ("none", "prefix", "dual"))
    causal = Limits(512, 100, 1000, 4, ("none", "causal"))
    plain = resolve({}, {}).requests
    assert (fit_decoder(plain, full).block_length, fit_decoder(plain, full).cache) == (32, "none")
    assert (fit_decoder(plain, causal).block_length, fit_decoder(plain, causal).cache) == (4, "causal")
    assert fit_decoder(resolve({"cache": ["none"]}, {}).requests, causal).cache == "none"
    with pytest.raises(ConfigError, match="--cache must be one of none, causal"):
        fit_decoder(resolve({"cache": ["dual"]}, {}).requests, causal)
    with pytest.raises(ConfigError, match="--block-length must be 4"):
        fit_decoder(resolve({"block_length": ["32"]}, {}).requests, causal)


@pytest.mark.parametrize("value", ["", ",", "a,"])
def test_an_empty_key_variable_never_opens_the_server(value: str) -> None:
    with pytest.raises(ConfigError, match="--api-key"):
        resolve({}, {"PSD_API_KEY": value})
    assert resolve({}, {"PSD_HOST": ""}).http.host == "127.0.0.1"


def test_unreadable_tls_files_fail_at_start() -> None:
    with pytest.raises(ConfigError, match="--ssl-keyfile must be a readable file, got '/nowhere/key'"):
        resolve({"ssl_keyfile": ["/nowhere/key"], "ssl_certfile": ["/nowhere/cert"]}, {})


def test_a_decoder_file_comes_before_the_defaults_and_after_everything_else(tmp_path: Path) -> None:
    path = tmp_path / "decoder.toml"
    path.write_text('policy = "localleap"\nthreshold = 0.8\ndraft_depth = 5\nblock_length = 16\n')
    given = {"decoder_config": [str(path)], "draft_depth": ["1"]}
    requests = resolve(given, {"PSD_THRESHOLD": "0.7"}).requests
    decoder = requests.decoder
    assert (decoder.policy, decoder.threshold, decoder.draft_depth, decoder.block_length) == ("localleap", 0.7, 1, 16)
    assert requests.is_block_length_given
    assert not requests.is_cache_given
    path = tmp_path / "decoder.json"
    path.write_text('{"draft_increment": "policy", "canvas_blocks": null}')
    decoder = resolve({}, {"PSD_DECODER_CONFIG": str(path)}).requests.decoder
    assert (decoder.draft_increment, decoder.canvas_blocks) == ("policy", None)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("threshold = 2", ("threshold must be a number between 0 and 1", "'2'")),
        ("treshold = 0.9", ("treshold is not a decoder setting", "threshold")),
        ("threshold = true", ("threshold must be a number or a text", "True")),
        ("threshold = [0.9]", ("threshold must be a number or a text",)),
        ("threshold", ("cannot be read",)),
        ('acceptance = "token"\nedit_threshold = 0.9', ("--edit-threshold", "exact")),
    ],
)
def test_a_wrong_decoder_file_is_named(tmp_path: Path, content: str, words: tuple[str, ...]) -> None:
    path = tmp_path / "decoder.toml"
    path.write_text(content)
    with pytest.raises(ConfigError) as caught:
        resolve({"decoder_config": [str(path)]}, {})
    assert all(word in str(caught.value) for word in words), caught.value
    with pytest.raises(ConfigError, match="--decoder-config: must be a readable file"):
        resolve({"decoder_config": [str(tmp_path / "none.toml")]}, {})
