"""All of a run's results as one value, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from server.body import JsonObject
from server.evaluation.problem import ALL
from server.evaluation.statistics import aup, loses_more_than
from server.evaluation.summary import MARGIN, Summary

PAPER_DEPTH: Final = 3  # that the paper recommends


@dataclass(frozen=True, slots=True)
class Area:
    """AUP of one series. points: its cells, by tokens per forward."""

    series: str
    value: float
    points: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Losses:
    """Of the (decoder, task) pairs at depth 3, how many lose more than a point against the policy without drafts.

    num_lost    by the estimate itself
    num_proven  by the whole interval
    """

    num_pairs: int
    num_lost: int
    num_proven: int


@dataclass(frozen=True, slots=True)
class RunResults:
    """Everything that is written about a run."""

    settings: JsonObject
    machine: JsonObject
    command: str
    baseline: str
    notes: Sequence[str]
    summaries: Sequence[Summary]

    @property
    def areas(self) -> list[Area]:
        """AUP per series with accuracy, best first. A series of one cell has the area of its one point."""
        accuracies = [summary.accuracy_of_all for summary in self.summaries]
        best = max((accuracy for accuracy in accuracies if accuracy is not None), default=0.0)
        by_series: dict[str, list[Summary]] = {}
        for summary in self.summaries:
            if summary.accuracy_of_all is not None:
                by_series.setdefault(summary.series, []).append(summary)
        areas = [
            Area(
                series,
                aup([(one.tpf, one.accuracy_of_all or 0.0) for one in some], best),
                tuple(one.name for one in sorted(some, key=lambda one: one.tpf)),
            )
            for series, some in by_series.items()
        ]
        return sorted(areas, key=lambda area: -area.value)

    @property
    def losses(self) -> Losses:
        """See Losses. Counted against the baseline where the grid lacks the policy without drafts."""
        intervals = [
            interval
            for summary in self.summaries
            if summary.settings.get("draft_depth") == PAPER_DEPTH
            for comparison in [summary.against_undrafted or summary.against_baseline]
            if comparison is not None
            for task, interval in comparison.differences.items()
            if task != ALL
        ]
        return Losses(
            num_pairs=len(intervals),
            num_lost=sum(interval.value < -MARGIN for interval in intervals),
            num_proven=sum(loses_more_than(interval, MARGIN) == "yes" for interval in intervals),
        )

    def to_json(self) -> str:
        """The whole as JSON, with what follows from the counts."""
        cells: list[Mapping[str, object]] = [
            asdict(summary)
            | {
                "tpf": summary.tpf,
                "tpf_without_refreshes": summary.tpf_without_refreshes,
                "rows_per_forward": summary.rows_per_forward,
                "tokens_per_second": summary.tokens_per_second,
            }
            for summary in self.summaries
        ]
        content = {
            "settings": self.settings,
            "machine": self.machine,
            "command": self.command,
            "baseline": self.baseline,
            "notes": list(self.notes),
            "cells": cells,
            "aup": [asdict(area) for area in self.areas],
            "losses_at_depth_3": asdict(self.losses),
        }
        return json.dumps(content, indent=1, ensure_ascii=False) + "\n"
