"""The number type of the weights: bfloat16 on a CPU only where the processor knows it and it measures faster."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from psd_core.errors import CheckpointError
from psd_core.models.dtypes import BF16_INSTRUCTIONS, cpu_instructions, faster_dtype, measure_layer, resolve_dtype
from psd_core.models.spec import ExpertsSpec, ModelSpec
from tests.engine.tiny import tiny_spec

CPU = torch.device("cpu")
EXPERTS = ExpertsSpec(4, 2, 24, 8, "softmax", True, 1.0, False, 1, 1, 0)


@pytest.mark.parametrize(
    ("instruction", "seconds", "chosen"),
    [
        ("avx2", (2.0, 1.0), torch.float32),  # emulated, whatever a measurement says
        ("amx_bf16", (2.0, 1.0), torch.bfloat16),
        ("avx512_bf16", (2.0, 1.0), torch.bfloat16),
        ("amx_bf16", (1.0, 0.95), torch.float32),  # not worth the rounding
        ("amx_bf16", (1.0, 2.0), torch.float32),
    ],
)
def test_bfloat16_must_be_known_and_faster(instruction: str, seconds: tuple[float, float], chosen: torch.dtype) -> None:
    assert faster_dtype(tiny_spec(), lambda: frozenset({instruction}), lambda spec: seconds) == chosen


@pytest.mark.parametrize("experts", [None, EXPERTS])
def test_one_layer_of_any_family_can_be_measured(experts: ExpertsSpec | None) -> None:
    seen: list[ModelSpec] = []

    def probe(spec: ModelSpec) -> tuple[float, float]:
        seen.append(spec)
        return measure_layer(spec)

    spec = replace(tiny_spec(num_kv_heads=1), experts=experts, has_qk_norm=True, rotary_dim=8)
    assert faster_dtype(spec, lambda: BF16_INSTRUCTIONS, probe) in (torch.float32, torch.bfloat16)
    (layer,) = seen
    assert layer.num_layers == 1
    assert layer.mlp_size == (spec.mlp_size if experts is None else 2 * 24 + 8)
    assert all(0 < seconds < math.inf for seconds in measure_layer(layer))


def test_instructions_are_read_as_the_kernel_lists_them(tmp_path: Path) -> None:
    file = tmp_path / "cpuinfo"
    assert cpu_instructions(file) == frozenset()
    file.write_text("processor\t: 0\nflags\t\t: fpu amx_bf16 sse2\n\nprocessor\t: 1\nflags\t\t: fpu\n")
    assert cpu_instructions(file) == {"fpu", "amx_bf16", "sse2"}
    file.write_text("processor\t: 0\nFeatures\t: fp asimd bf16\n")
    assert "bf16" in cpu_instructions(file)


def test_a_named_type_is_taken_as_it_is() -> None:
    assert resolve_dtype("bfloat16", tiny_spec(), CPU) == torch.bfloat16
    assert resolve_dtype("auto", tiny_spec(), torch.device("cuda")) == torch.bfloat16
    with pytest.raises(CheckpointError, match="dtype must be one of auto, float32, bfloat16, float16; got 'int4'"):
        resolve_dtype("int4", tiny_spec(), CPU)
