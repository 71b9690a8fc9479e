"""Compiled layers equal plain ones for any number of tokens, are compiled once, and fail at start or never."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch._dynamo.utils import counters
from torch._inductor import config as inductor

from psd_core.config import DecoderConfig
from psd_core.errors import ConfigError
from psd_core.models.compiling import compile_layers
from psd_core.models.layers import DecoderLayer
from psd_core.request import Request
from tests.engine.drive import Driver, assert_all_as_alone
from tests.engine.tiny import tiny_model, tiny_spec

pytestmark = pytest.mark.filterwarnings("default")  # the compiler warns of much that is none of our business


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def test_compiled_layers_answer_as_plain_ones_and_are_compiled_once() -> None:
    spec = tiny_spec(is_context_causal=True, block_length=8)  # biases and all
    plain, compiled = tiny_model(2, spec), tiny_model(2, spec)
    compile_layers(compiled)
    num_compiled = counters["stats"]["unique_graphs"]
    assert num_compiled == 2, "one for what stands before the attention of every layer, one for what stands behind it"
    driver = Driver(compiled)
    requests = [
        Request(str(depth), tuple(range(2, 3 + 5 * depth)), 8 + depth, DecoderConfig(block_length=8, draft_depth=depth))
        for depth in range(4)
    ]
    assert_all_as_alone(driver, plain, requests)
    hidden, angle = torch.randn(1, spec.hidden_size), torch.randn(1, 1, spec.head_dim)
    single = []
    for layer in (compiled.layers[0], plain.layers[0]):
        assert isinstance(layer, DecoderLayer)
        single.append(layer.before(layer, hidden, angle, angle))
    torch.testing.assert_close(*single)
    assert counters["stats"]["unique_graphs"] == num_compiled, "compiled again during a request"


def test_without_a_compiler_the_start_fails_and_says_why() -> None:
    missing = {"cpp.cxx": ("/nowhere/c++",), "force_disable_caches": True}
    with inductor.patch(missing), pytest.raises(ConfigError, match=r"--compile needs a C\+\+ compiler"):
        compile_layers(tiny_model(0))
