"""Intervals and areas against values worked out by hand."""

from __future__ import annotations

import math

import pytest

from server.evaluation.statistics import Interval, aup, loses_more_than, mcnemar, paired_difference, wilson


def test_wilson_stays_within_0_and_1_and_holds_the_share() -> None:
    half = wilson(50, 100)
    assert (half.low, half.high) == pytest.approx((0.4038, 0.5962), abs=1e-4)  # Wilson 1927, z = 1.96
    for right in (0, 1, 20):
        interval = wilson(right, 20)
        assert 0 <= interval.low <= interval.value <= interval.high <= 1


def test_a_paired_difference_is_judged_by_the_problems_that_differ() -> None:
    ours = [True] * 990 + [False] * 10
    same = paired_difference(ours, ours)
    assert same.value == 0
    assert same.low == -same.high
    assert same.high < 0.0025  # 1,000 equal problems leave no room for a point
    assert loses_more_than(same, 0.01) == "no"
    theirs = [True] * 1000
    fewer = paired_difference(ours, theirs)  # ten lost, none gained
    assert fewer.value == pytest.approx(-0.01)
    assert fewer.low < -0.01 < fewer.high < 0
    assert loses_more_than(fewer, 0.01) == "open"
    assert loses_more_than(paired_difference([False] * 100 + ours[100:], theirs), 0.01) == "yes"
    # Differing problems that cancel out are noise: the interval is wider than that of equal answers.
    mixed = paired_difference([True] * 50 + [False] * 50, [False] * 50 + [True] * 50)
    assert mixed.value == 0
    assert mixed.high > 0.15


def test_mcnemar_counts_only_problems_that_differ() -> None:
    assert mcnemar([True] * 5, [True] * 5) == 1.0
    assert mcnemar([True] * 8 + [False] * 92, [False] * 100) == pytest.approx(2 / 2**8)
    assert mcnemar([True, False], [False, True]) == 1.0


def test_aup_is_the_weighted_area_of_its_definition() -> None:
    assert aup([(2.0, 0.5)], 0.5) == pytest.approx(100.0)
    weight = math.exp(-3 * (1 - 0.48 / 0.5))
    area = 2.0 * 0.5 + (4.0 - 2.0) * (0.5 * 1.0 + 0.48 * weight) / 2
    assert aup([(4.0, 0.48), (2.0, 0.5)], 0.5) == pytest.approx(100 * area)
    # More than five points below the first: left out.
    assert aup([(4.0, 0.48), (2.0, 0.5), (9.0, 0.44)], 0.5) == pytest.approx(100 * area)
    assert aup([], 0.5) == 0.0


def test_a_verdict_needs_the_whole_interval() -> None:
    assert loses_more_than(Interval(-0.02, -0.03, -0.005), 0.01) == "open"
