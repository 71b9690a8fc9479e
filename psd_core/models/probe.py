"""One layer of a model with made-up weights, to be timed: what settings that depend on the machine are chosen by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import torch

from psd_core.batch import Batch, Segment
from psd_core.models.attention import attention_over
from psd_core.models.group import Alone
from psd_core.models.layers import DecoderLayer
from psd_core.models.spec import ModelSpec

PROBE_TOKENS: Final = 128  # a block of 32 with three drafts
PROBE_SECONDS: Final = 0.5  # of measuring, after which a round is the last one


def layer_call(spec: ModelSpec, dtype: torch.dtype) -> Callable[[], object]:
    """A forward of 128 tokens through one layer of `spec` on the CPU, to be called under `torch.inference_mode`."""
    cpu = torch.device("cpu")
    layer = DecoderLayer(spec, True, dtype, cpu, Alone())
    for parameter in layer.parameters():
        parameter.fill_(1 / spec.hidden_size)
    hidden = torch.ones(PROBE_TOKENS, spec.hidden_size, dtype=dtype)
    angles = torch.zeros(PROBE_TOKENS, 1, spec.rotary_dim or spec.head_dim)
    positions = torch.arange(PROBE_TOKENS)
    segment = Segment(0, 1, PROBE_TOKENS, 0, None, 0, None, None)
    batch = Batch(positions, positions, (segment,), (None,), positions[:0])
    nothing = torch.empty(0, spec.num_kv_heads, spec.head_dim, dtype=dtype)
    return lambda: layer(hidden, (angles.cos(), angles.sin()), attention_over(batch), nothing, nothing)


def one_layer(spec: ModelSpec) -> ModelSpec:
    """A dense layer with as many features as a token passes through, and nothing else."""
    size, experts = spec.mlp_size, spec.experts
    if experts is not None:
        size = experts.num_chosen * experts.expert_size + experts.shared_size
    return replace(spec, num_layers=1, mlp_size=size, experts=None, vocab_size=1)
