"""Limits per key and the memory of fatal requests, on a clock of their own."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psd_core.config import DecoderConfig
from psd_core.request import Request, SamplingParams
from server.errors import ApiError
from server.quarantine import MAX_ENTRIES, MEMORY_SECONDS, Quarantine
from server.quota import Quotas


class Clock:
    """Seconds that pass when told to."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_requests_per_minute_are_counted_per_key_and_grow_back() -> None:
    clock = Clock()
    quotas = Quotas(0, 2, clock)
    quotas.count("a")
    quotas.count("a")
    with pytest.raises(ApiError, match="2 requests per minute") as caught:
        quotas.count("a")
    assert (caught.value.status, caught.value.code) == (429, "rate_limited")
    wait = int(caught.value.headers["Retry-After"])
    quotas.count("b")
    clock.now += wait
    quotas.count("a")
    with pytest.raises(ApiError):
        quotas.count("a")


@given(st.lists(st.floats(0, 30), min_size=1, max_size=60), st.integers(1, 20))
def test_no_minute_ever_sees_more_than_twice_the_limit(pauses: list[float], limit: int) -> None:
    """A full allowance may be spent at once, and what grows back within the minute after it."""
    clock = Clock()
    quotas = Quotas(0, limit, clock)
    served: list[float] = []
    for pause in pauses:
        clock.now += pause
        try:
            quotas.count("a")
        except ApiError:
            continue
        served.append(clock.now)
        assert len([moment for moment in served if moment > clock.now - 60]) <= 2 * limit


def test_open_sequences_are_counted_per_key_until_they_close() -> None:
    quotas = Quotas(3, 0)
    leave = quotas.enter("a", 2)
    with pytest.raises(ApiError, match="2 sequences of this key are open, 2 more would exceed 3") as caught:
        quotas.enter("a", 2)
    assert (caught.value.status, caught.value.code, caught.value.headers["Retry-After"]) == (429, "key_limit", "1")
    quotas.enter("b", 3)
    leave()
    quotas.enter("a", 3)


REQUEST = Request("a", (5, 6, 7), 16)


def is_refused(quarantine: Quarantine, request: Request) -> bool:
    try:
        quarantine.check(request)
    except ApiError as error:
        return (error.status, error.code) == (422, "request_refused")
    return False


def test_the_second_death_refuses_equal_requests_only() -> None:
    quarantine = Quarantine(Clock())
    quarantine.charge(REQUEST)
    assert not is_refused(quarantine, REQUEST)
    quarantine.charge(replace(REQUEST, request_id="b", sampling=SamplingParams(seed=9), watch=True))
    assert is_refused(quarantine, replace(REQUEST, request_id="c"))
    assert not is_refused(quarantine, replace(REQUEST, prompt_ids=(5, 6)))
    assert not is_refused(quarantine, replace(REQUEST, decoder=DecoderConfig(policy="greedy")))


def test_an_answer_and_time_clear_the_suspicion() -> None:
    clock = Clock()
    quarantine = Quarantine(clock)
    quarantine.charge(REQUEST)
    quarantine.clear(REQUEST)
    quarantine.charge(REQUEST)
    assert not is_refused(quarantine, REQUEST)
    quarantine.charge(REQUEST)
    assert is_refused(quarantine, REQUEST)
    clock.now += MEMORY_SECONDS
    assert not is_refused(quarantine, REQUEST)
    quarantine.charge(REQUEST)
    assert not is_refused(quarantine, REQUEST)


def test_only_so_many_suspects_are_remembered() -> None:
    quarantine = Quarantine(Clock())
    for index in range(2 * MAX_ENTRIES):
        for _ in range(2):
            quarantine.charge(replace(REQUEST, max_tokens=index + 1))
    assert not is_refused(quarantine, replace(REQUEST, max_tokens=1))
    assert is_refused(quarantine, replace(REQUEST, max_tokens=2 * MAX_ENTRIES))
