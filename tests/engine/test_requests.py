"""Ends, lengths, literal mask ids, limits: what a request gets and what is refused."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from psd_core.config import DecoderConfig, EngineConfig
from psd_core.engine import Engine
from psd_core.errors import ConfigError, ContextError, RequestError
from psd_core.events import FinishedEvent
from psd_core.request import Granularity, Request, SamplingParams
from tests.engine.drive import Driver, run_alone
from tests.engine.naive import naive_decode
from tests.engine.tiny import MASK_ID, VOCAB_SIZE, tiny_model

BLOCK_8 = DecoderConfig(policy="greedy", block_length=8, draft_depth=2)


@pytest.mark.parametrize("max_tokens", [1, 2, 7, 8, 9, 15, 16, 17])
def test_any_max_tokens_is_exact(max_tokens: int) -> None:
    outcome, finished = run_alone(tiny_model(1), Request("r", (5, 6), max_tokens, BLOCK_8))
    assert len(outcome.token_ids) == max_tokens
    assert finished.reason == "length"


def test_the_text_ends_with_the_first_stop_id_and_the_rest_is_counted_as_discarded() -> None:
    model = tiny_model(1)
    free = run_alone(model, Request("r", (5, 6), 24, BLOCK_8))[0].token_ids
    stop_id = free[10]
    first = free.index(stop_id)
    outcome, finished = run_alone(model, Request("r", (5, 6), 24, BLOCK_8, stop_ids=frozenset({stop_id})))
    assert outcome.token_ids == free[: first + 1]
    assert (finished.reason, finished.stop_id) == ("stop", stop_id)
    assert finished.figures.generated_tokens == first + 1
    assert finished.figures.discarded_tokens < 8, "blocks behind the end were decoded"


def test_stop_ids_are_not_chosen_before_min_tokens() -> None:
    model = tiny_model(1)
    free = run_alone(model, Request("r", (5, 6), 24, BLOCK_8))[0].token_ids
    request = Request("r", (5, 6), 24, BLOCK_8, stop_ids=frozenset(free[:3]), min_tokens=9)
    outcome, _ = run_alone(model, request)
    assert not request.stop_ids & set(outcome.token_ids[:9])
    assert outcome.token_ids == naive_decode(model, request).token_ids


def test_the_mask_id_in_a_prompt_is_ordinary_text() -> None:
    model = tiny_model(1)
    request = Request("r", (5, MASK_ID, MASK_ID, 6, MASK_ID), 12, BLOCK_8)
    outcome, _ = run_alone(model, request)
    assert outcome.token_ids == naive_decode(model, request).token_ids
    assert MASK_ID not in outcome.token_ids


def test_the_mask_id_and_undefined_ids_are_never_generated() -> None:
    undefined = tuple(range(20, VOCAB_SIZE - 1))
    driver = Driver(tiny_model(3), EngineConfig(undefined_ids=undefined))
    driver.add(Request("r", (5, 6), 64, BLOCK_8, SamplingParams(temperature=2.0, seed=5)))
    driver.run()
    assert set(driver.outcomes["r"].token_ids) < set(range(20))


def test_frontier_and_block_reports_join_to_the_same_tokens() -> None:
    model = tiny_model(1)
    events: dict[Granularity, list[int]] = {"block": [], "frontier": []}
    for granularity in events:
        driver = Driver(model)
        driver.add(Request("r", (5, 6), 24, BLOCK_8, granularity=granularity))
        while driver.engine.has_work():
            events[granularity] += [len(event.token_ids) for event in driver.step().tokens]
        events[granularity].append(-sum(driver.outcomes["r"].token_ids))
    assert events["block"][:-1] == [8, 8, 8]
    assert len(events["frontier"]) > len(events["block"])
    assert events["frontier"][-1] == events["block"][-1]


def test_canvas_events_show_how_each_position_was_decided() -> None:
    driver = Driver(tiny_model(1))
    driver.add(Request("r", (5, 6), 16, replace(BLOCK_8, draft_depth=3), watch=True))
    canvases = []
    while driver.engine.has_work():
        canvases += driver.step().canvases
    assert len(canvases) == driver.forwards
    last = {canvas.start: canvas for canvas in canvases}
    shown = [token for start in (0, 8) for token in last[start].token_ids]
    assert shown == driver.outcomes["r"].token_ids
    assert {depth for canvas in canvases for depth in canvas.depths} >= {None, 0, 1}
    for canvas in canvases:
        for token, depth in zip(canvas.token_ids, canvas.depths, strict=True):
            assert (token is None) == (depth is None)


def test_figures_add_up() -> None:
    driver = Driver(tiny_model(1))
    driver.add(Request("r", (5, 6), 24, replace(BLOCK_8, cache="dual", draft_depth=3)))
    rows = drafted = accepted = 0
    while driver.engine.has_work():
        report = driver.step().report
        assert report is not None
        rows += report.rows
        drafted += report.drafted_tokens
        accepted += report.accepted_tokens
    finished = driver.outcomes["r"].finished
    assert finished is not None
    figures = finished.figures
    assert (figures.rows, figures.drafted_tokens, figures.accepted_tokens) == (rows, drafted, accepted)
    assert figures.forwards == driver.forwards
    assert figures.refresh_forwards == 3
    assert sum(figures.accepted_depths) == figures.forwards - figures.refresh_forwards
    assert figures.tokens_per_forward == 24 / figures.forwards


def test_what_cannot_be_served_is_refused_with_the_limit_and_the_value() -> None:
    engine = Engine(tiny_model(0), EngineConfig(max_model_len=64, max_cache_tokens=90))
    with pytest.raises(ContextError, match=r"prompt \(40 tokens\) plus max_tokens \(25, rounded up to 32.*is 72.*64"):
        engine.add(Request("r", (1,) * 40, 25, BLOCK_8))
    with pytest.raises(ContextError, match=r"needs 102 cache slots.*holds 90"):
        engine.add(Request("r", (1,) * 16, 32, replace(BLOCK_8, cache="dual", draft_depth=5)))
    with pytest.raises(RequestError, match=rf"between 0 and {VOCAB_SIZE - 1}, got {VOCAB_SIZE}"):
        engine.add(Request("r", (1, VOCAB_SIZE), 8, BLOCK_8))
    engine.add(Request("twice", (1,), 8, BLOCK_8))
    with pytest.raises(RequestError, match="already in use"):
        engine.add(Request("twice", (1,), 8, BLOCK_8))
    with pytest.raises(ConfigError, match=r"at most the model's 256, got 257"):
        Engine(tiny_model(0), EngineConfig(max_model_len=257))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"policy": "best"}, "policy must be one of greedy"),
        ({"threshold": 1.5}, r"threshold must be between 0 and 1, got 1\.5"),
        ({"threshold": float("nan")}, "threshold must be between 0 and 1, got nan"),
        ({"block_length": 0}, "block_length must be between 1 and 1024, got 0"),
        ({"draft_depth": 33}, "draft_depth must be between 0 and 32, got 33"),
        ({"draft_depth": True}, "draft_depth must be an integer"),
        ({"draft_depth": "deep"}, "draft_depth must be an integer or 'auto', got 'deep'"),
        ({"draft_increment": "all"}, "draft_increment must be an integer or 'policy' or 'subsets', got 'all'"),
        ({"draft_increment": "subsets", "acceptance": "token"}, "'subsets' needs acceptance 'exact'"),
        ({"k": 0}, "k must be between 1"),
    ],
)
def test_decoder_settings_out_of_range_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DecoderConfig(**settings)  # type: ignore[arg-type]  # wrong on purpose


def test_the_boundary_types_do_not_import_torch() -> None:
    """The API process checks requests without loading torch."""
    code = "import sys, psd_core.admission, psd_core.events, psd_core.assets; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_request_that_was_handed_over_late_has_queued_since_it_arrived() -> None:
    """As behind a forward that was under way when it came to the worker."""
    engine = Engine(tiny_model(0), EngineConfig(), clock=lambda: 10.0)
    engine.add(Request("r", (5, 9), 4), arrival_seconds=7.5)
    finished: list[FinishedEvent] = []
    while engine.has_work():
        finished += engine.step().finished
    assert finished[0].figures.queue_seconds == 2.5
