"""The fast attention path equals the plain one, over a table of shapes."""

from __future__ import annotations

import pytest
import torch

from psd_core.batch import MAX_BIAS_ELEMENTS, LargeBias, Segment, build_batch, hidden_keys, make_biases
from psd_core.models.attention import attend, attend_plain
from tests.engine.spans import SHAPES, Shape, plan_of

CPU = torch.device("cpu")


@pytest.mark.parametrize("max_elements", [MAX_BIAS_ELEMENTS, 100, 1])
@pytest.mark.parametrize("shape", [one for shapes in SHAPES for one in shapes])
def test_the_bias_hides_what_its_plain_twin_says(shape: Shape, max_elements: int) -> None:
    rows, width, start, context_stop, cached, *causality = shape
    segment = Segment(0, rows, width, start, 5 if cached else None, context_stop, *causality)
    hidden = torch.from_numpy(hidden_keys(segment))
    (bias,) = make_biases([segment], torch.float32, CPU, max_elements)
    assert (bias is None) == (not hidden.any())
    if isinstance(bias, LargeBias):
        pieces = [piece for _, piece in bias.pieces()]
        assert max(piece.numel() for piece in pieces) <= max(max_elements, hidden.shape[1])
        bias = torch.cat(pieces)
    expected = torch.zeros(hidden.shape).masked_fill(hidden, -torch.inf)
    assert torch.equal(torch.zeros(hidden.shape) if bias is None else bias, expected)


def test_the_biases_of_a_forward_keep_no_more_than_the_limit() -> None:
    """Of three alike the first two fit; a fourth without a bias takes no room."""
    alike = [Segment(0, 1, 8, 8, 5, 8, 4, None)] * 3
    free = Segment(0, 1, 8, 8, 5, 8, None, None)
    first, second, third, none = make_biases([*alike, free], torch.float32, CPU, 2 * 8 * 16)
    assert isinstance(first, torch.Tensor)
    assert isinstance(second, torch.Tensor)
    assert isinstance(third, LargeBias)
    assert none is None


@pytest.mark.parametrize("max_elements", [MAX_BIAS_ELEMENTS, 100])
@pytest.mark.parametrize("num_kv_heads", [1, 2, 4])
@pytest.mark.parametrize("shape", SHAPES)
def test_attend_equals_its_plain_twin(shape: list[Shape], num_kv_heads: int, max_elements: int) -> None:
    generator = torch.Generator().manual_seed(0)
    plan, slot = plan_of(shape)
    batch = build_batch(plan, False, torch.float32, CPU, max_elements)
    tokens = batch.token_ids.shape[0]
    query = torch.randn(tokens, 4, 16, generator=generator)
    key, value = (torch.randn(tokens, num_kv_heads, 16, generator=generator) for _ in range(2))
    arena = torch.randn(2, slot, num_kv_heads, 16, generator=generator)
    fast_arena, plain_arena = arena.clone(), arena.clone()
    fast = attend(query, key, value, batch, fast_arena[0], fast_arena[1])
    plain = attend_plain(query, key, value, batch, plain_arena[0], plain_arena[1])
    torch.testing.assert_close(fast, plain, atol=1e-5, rtol=1e-5)
    for segment in batch.segments:
        if segment.slot_start is not None:
            written = segment.slot_start + segment.context_stop
            own = slice(segment.start, segment.start + segment.num_tokens)
            assert torch.equal(fast_arena[0, written : written + segment.num_tokens], key[own])
            assert torch.equal(fast_arena[1, written : written + segment.num_tokens], value[own])
            context = slice(segment.slot_start, written)
            assert torch.equal(fast_arena[:, context], arena[:, context]), "a forward changed the context it reads"
