"""What blocks are filled by, counted per tenth: as someone who watches the canvas would count it."""

from __future__ import annotations

import pytest

from psd_core.config import DecoderConfig, PolicyName
from psd_core.events import CanvasEvent
from psd_core.request import Request
from tests.engine.drive import Driver
from tests.engine.tiny import tiny_model, tiny_spec


def count(canvases: list[CanvasEvent], num_open: dict[int, int]) -> tuple[list[int], list[int]]:
    """(spatial, temporal) per decile. num_open: undecided positions of each block at its start, by `start`."""
    spatial, temporal = [0] * 10, [0] * 10
    seen: dict[int, set[int]] = {}
    for canvas in canvases:
        before = seen.setdefault(canvas.start, set())
        new = [index for index, depth in enumerate(canvas.depths) if depth is not None and index not in before]
        order = len(before)
        # Accepted drafts come first, then the policy's own step from the accepted state.
        for index in sorted(new, key=lambda index: canvas.depths[index] == 0):
            counts = temporal if canvas.depths[index] else spatial
            counts[10 * order // num_open[canvas.start]] += 1
            order += 1
        before.update(new)
    return spatial, temporal


@pytest.mark.parametrize("policy", ["greedy", "topk", "lopa"])
@pytest.mark.parametrize("block_length", [None, 8])
def test_deciles_count_what_the_canvas_shows(policy: PolicyName, block_length: int | None) -> None:
    model = tiny_model(1, tiny_spec(block_length=block_length))
    decoder = DecoderConfig(
        policy=policy,
        k=3,
        block_length=8,
        draft_depth=3,
        acceptance="token",
        cache="none",
    )
    driver = Driver(model)
    driver.add(Request("r", (5, 6, 7), 24, decoder, watch=True))
    canvases: list[CanvasEvent] = []
    while driver.engine.has_work():
        canvases += driver.step().canvases
    finished = driver.outcomes["r"].finished
    assert finished is not None
    # The first block of a block-causal model holds the prompt's end.
    num_open = {canvas.start: len(canvas.token_ids) for canvas in canvases}
    spatial, temporal = count(canvases, num_open)
    assert (list(finished.figures.spatial_deciles), list(finished.figures.temporal_deciles)) == (spatial, temporal)
    assert sum(spatial) + sum(temporal) == sum(num_open.values())
    if policy != "lopa":
        assert sum(temporal) == finished.figures.accepted_tokens
