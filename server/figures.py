"""What a request cost, as its answer tells: the `usage` and `psd` objects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from psd_core.config import DecoderConfig, PolicyName
from psd_core.events import Figures
from server.body import JsonObject
from server.generation import End

POLICY_SETTINGS: Final[Mapping[PolicyName, tuple[str, ...]]] = {
    "greedy": (),
    "topk": ("k",),
    "threshold": ("threshold",),
    "factor": ("factor",),
    "entropy": ("gamma",),
    "margin": ("threshold",),
    "localleap": ("threshold", "relaxed_threshold", "window"),
    "lopa": ("threshold", "branches"),
}


def usage(num_prompt_tokens: int, num_tokens: int, ends: Sequence[End]) -> JsonObject:
    """OpenAI's usage. Predictions are drafted tokens: accepted ones held, rejected ones did not."""
    drafted = sum(end.figures.drafted_tokens for end in ends)
    accepted = sum(end.figures.accepted_tokens for end in ends)
    return {
        "prompt_tokens": num_prompt_tokens,
        "completion_tokens": num_tokens,
        "total_tokens": num_prompt_tokens + num_tokens,
        "prompt_tokens_details": {"cached_tokens": sum(end.figures.reused_tokens for end in ends)},
        "completion_tokens_details": {
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": drafted - accepted,
        },
    }


def psd(decoder: DecoderConfig, ends: Sequence[End]) -> JsonObject:
    """The decoding's figures, over one choice or several: counts add up, times are those of the slowest choice."""
    every = [end.figures for end in ends]
    num_tokens = sum(end.num_tokens for end in ends)
    forwards = sum(figures.forwards for figures in every)
    refreshes = sum(figures.refresh_forwards for figures in every)
    drafted = sum(figures.drafted_tokens for figures in every)
    return {
        "forwards": forwards,
        "refresh_forwards": refreshes,
        "scoring_forwards": sum(figures.scoring_forwards for figures in every),
        "tokens_per_forward": _per(num_tokens, forwards),
        "tokens_per_denoising_forward": _per(num_tokens, forwards - refreshes),
        "mean_accepted_depth": round(_mean_accepted_depth(every), 4),
        "accepted_depths": _summed(figures.accepted_depths for figures in every),
        "spatial_deciles": _summed(figures.spatial_deciles for figures in every),
        "temporal_deciles": _summed(figures.temporal_deciles for figures in every),
        "rows": sum(figures.rows for figures in every),
        "drafted_tokens": drafted,
        "accepted_tokens": sum(figures.accepted_tokens for figures in every),
        "discarded_tokens": sum(
            figures.generated_tokens + figures.discarded_tokens - end.num_tokens
            for figures, end in zip(every, ends, strict=True)
        ),
        **settings(decoder),
        "queue_seconds": round(max((figures.queue_seconds for figures in every), default=0.0), 6),
        "decode_seconds": round(max((figures.decode_seconds for figures in every), default=0.0), 6),
    }


def settings(decoder: DecoderConfig) -> JsonObject:
    """The decoder settings that were used; those of other policies are left out."""
    return {
        "policy": decoder.policy,
        **{name: getattr(decoder, name) for name in POLICY_SETTINGS[decoder.policy]},
        "block_length": decoder.block_length,
        **_drafting(decoder),
        "cache": decoder.cache,
        "canvas_blocks": decoder.canvas_blocks,
        **_editing(decoder),
    }


def _drafting(decoder: DecoderConfig) -> JsonObject:
    """Branches are no drafts; "auto" is named only where the number is in fact chosen."""
    if decoder.policy == "lopa":
        return {}
    return {
        "draft_depth": "auto" if decoder.has_auto_depth else decoder.num_guesses,
        "draft_increment": decoder.draft_increment,
        "acceptance": decoder.acceptance,
    }


def _editing(decoder: DecoderConfig) -> JsonObject:
    if decoder.edit_threshold is None:
        return {}
    return {"edit_threshold": decoder.edit_threshold, "max_edit_passes": decoder.max_edit_passes}


def _summed(every: Iterable[Sequence[int]]) -> list[int]:
    """Counts of several choices added up, place by place; the choices of one job have as many places."""
    return [sum(counts) for counts in zip(*every, strict=True)]


def _per(num_tokens: int, forwards: int) -> float:
    return round(num_tokens / forwards, 4) if forwards > 0 else 0.0


def _mean_accepted_depth(every: Sequence[Figures]) -> float:
    forwards = sum(sum(figures.accepted_depths) for figures in every)
    total = sum(depth * count for figures in every for depth, count in enumerate(figures.accepted_depths))
    return total / forwards if forwards else 0.0
