"""`torch.compile` of what a layer does token by token. Attention, whose shapes differ in every forward, stays as it is.

The number of tokens is a variable of the compiled code, so each half of a layer is compiled once: for all layers, and
for all batches of at least two tokens. A single token, which the compiler would take for a constant, is not compiled.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final, Generic, TypeVar

import torch
from torch import Tensor

from psd_core.errors import ConfigError, one_line
from psd_core.kvcache.store import KVStore
from psd_core.models.layers import DecoderLayer, DiffusionDecoder, GatedMLP

logger = logging.getLogger(__name__)

PROBE_TOKENS: Final = 8
Result = TypeVar("Result")


def compile_layers(model: DiffusionDecoder) -> None:
    """Compile the halves of the model's layers, now. ConfigError if that cannot be done on this machine.

    Layers with experts keep the half behind the attention: what they compute depends on the choice of experts.
    """
    if model.group.shard.size > 1:
        raise ConfigError("compile", f"--compile needs --tensor-parallel-size 1, got {model.group.shard.size}")
    before, after = _Half(DecoderLayer.project), _Half(DecoderLayer.finish)
    for layer in model.layers:
        assert isinstance(layer, DecoderLayer)
        layer.before = before
        if isinstance(layer.mlp, GatedMLP):
            layer.after = after
    started = time.monotonic()
    try:
        _try(model)
    except Exception as error:  # compilers fail in many ways, and each of them would fail in every forward
        needs = "a C++ compiler" if model.device.type == "cpu" else "Triton and a C compiler"
        raise ConfigError("compile", f"--compile needs {needs}, and compiling failed: {one_line(error)}") from error
    logger.info("the layers are compiled, in %.1f s", time.monotonic() - started)


class _Half(Generic[Result]):
    """A method of a layer, compiled for any number of tokens from two up."""

    def __init__(self, method: Callable[..., Result]) -> None:
        from torch._dynamo import mark_dynamic  # takes seconds to import: only for those who compile

        self._method, self._mark = method, mark_dynamic
        self._compiled = torch.compile(method, fullgraph=True)

    def __call__(self, layer: DecoderLayer, *tensors: Tensor) -> Result:
        """tensors: [T, …] each."""
        if tensors[0].shape[0] == 1:
            return self._method(layer, *tensors)
        for tensor in tensors:
            self._mark(tensor, 0)
        return self._compiled(layer, *tensors)


@torch.inference_mode()
def _try(model: DiffusionDecoder) -> None:
    """A forward without attention through all layers."""
    local = model.local
    token_ids = torch.zeros(PROBE_TOKENS, dtype=torch.int64, device=model.device)
    store = KVStore(local.num_layers, 0, local.num_kv_heads, local.head_dim, model.dtype, model.device)
    model.compute(token_ids, token_ids, lambda query, *_: torch.zeros_like(query), store)
