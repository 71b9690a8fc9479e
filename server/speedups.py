"""What `--compile` and `--cuda-graphs` cannot go together with, as far as it is known before a model is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from psd_core.errors import ConfigError


def check_speedups(values: Mapping[str, object]) -> None:
    """ConfigError if one of them was asked for where it cannot be. values: of all flags, by name."""
    num_ranks = cast(int, values["tensor_parallel_size"])
    for name in ("compile", "cuda_graphs"):
        if values[name] and num_ranks > 1:
            option = "--" + name.replace("_", "-")
            raise ConfigError(name, f"{option} needs --tensor-parallel-size 1, got {num_ranks}")
    if values["cuda_graphs"] and values["device"] == "cpu":
        raise ConfigError("cuda_graphs", "--cuda-graphs needs a CUDA device, got --device cpu")
