"""A request goes to the replica that has the beginning of its prompt, unless that one is much busier."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.affinity import Affinity, Choice
from tests.server.process import SLOW, ServerProcess, wait_until

SDAR = Path(__file__).parents[1] / "data" / "golden" / "sdar" / "ckpt"
PROMPT = tuple(range(100, 300))


def affinity(max_cache_tokens: int = 4096) -> Affinity:
    return Affinity(block_length=32, max_cache_tokens=max_cache_tokens, max_num_seqs=16)


def test_the_longest_known_beginning_is_followed() -> None:
    known = affinity()
    assert known.choose(PROMPT, {0: 0, 1: 0}) == Choice(0, "unknown")
    known.keep(1, PROMPT[:70])
    assert known.choose(PROMPT, {0: 0, 1: 0}) == Choice(1, "followed")
    known.keep(0, PROMPT[:140])
    assert known.choose(PROMPT, {0: 0, 1: 0}) == Choice(0, "followed")
    assert known.choose((1, *PROMPT), {0: 1, 1: 0}) == Choice(1, "unknown")
    known.forget(0)
    assert known.choose(PROMPT, {0: 0, 1: 0}) == Choice(1, "followed")
    assert known.choose(PROMPT, {0: 0, 2: 0}) == Choice(0, "unknown"), "the replica that has it is not ready"


def test_salts_keep_requests_apart() -> None:
    known = affinity()
    known.keep(1, PROMPT, "a")
    assert known.choose(PROMPT, {0: 0, 1: 0}) == Choice(0, "unknown")
    assert known.choose(PROMPT, {0: 0, 1: 0}, "a") == Choice(1, "followed")


def test_of_several_that_have_it_the_least_busy_is_taken() -> None:
    known = affinity()
    known.keep(0, PROMPT)
    known.keep(1, PROMPT)
    assert known.choose(PROMPT, {0: 1, 1: 0, 2: 0}) == Choice(1, "followed")


def test_what_was_used_long_ago_is_forgotten() -> None:
    known = affinity(max_cache_tokens=192)  # three steps of 64
    known.keep(0, PROMPT[:128])
    known.keep(0, tuple(range(128)))
    assert known.choose(PROMPT[:64], {0: 1, 1: 0}) == Choice(0, "followed"), "the shorter beginning is still known"
    known.keep(0, tuple(range(300, 364)))
    assert known.choose(PROMPT[:64], {0: 1, 1: 0}) == Choice(1, "unknown")
    assert known.choose(tuple(range(128)), {0: 1, 1: 0}) == Choice(0, "followed")


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=200))
def test_no_replica_leads_by_more_than_the_limit(events: list[tuple[int, bool]]) -> None:
    """Whatever prompts come: requests begin, and some end where they were."""
    known, loads = affinity(), {0: 0, 1: 0, 2: 0}
    for number, ends in events:
        prompt = tuple(range(number, number + 64))
        choice = known.choose(prompt, loads)
        assert loads[choice.index] - min(loads.values()) <= known.max_lead
        known.keep(choice.index, prompt)
        if not ends:
            loads[choice.index] += 1


def test_two_servers_route_alike() -> None:
    first, second = affinity(), affinity()
    for known in (first, second):
        for number in range(40):
            known.keep(number % 3, tuple(range(number, number + 128)))
    for number in range(40):
        prompt = tuple(range(number, number + 128))
        assert first.choose(prompt, {0: 2, 1: 2, 2: 2}) == second.choose(prompt, {2: 2, 1: 2, 0: 2})


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(SDAR, tmp_path_factory.mktemp("pair"), ["--replicas", "2"]) as server:
        wait_until(lambda: server.client.get("/health").json()["workers"] == ["ready", "ready"], 120)
        yield server


def test_a_busy_replica_is_preferred_for_what_it_has_cached(pair: ServerProcess) -> None:
    hits = "psd_prefix_cache_hit_tokens_total"
    pair.complete(prompt=PROMPT, max_tokens=4)
    assert pair.metric(hits) == 0
    busy = {"model": "tiny", "prompt": [9], "max_tokens": 1000, "ignore_eos": True, "stream": True, "psd": SLOW}
    with httpx.stream("POST", f"{pair.url}/v1/completions", json=busy, timeout=60) as stream:
        next(stream.iter_lines())  # the other replica is idle, and both are as good to whoever knows no prefix
        again = pair.complete(prompt=[*PROMPT, 5], max_tokens=4)
    assert again.status_code == 200, json.dumps(again.json())
    assert pair.metric(hits) == 200
    assert pair.metric('psd_prefix_affinity_total{outcome="followed"}') == 1
    assert pair.metric('psd_prefix_affinity_total{outcome="overruled"}') == 0
