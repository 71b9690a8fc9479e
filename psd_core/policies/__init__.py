"""Transfer policies, and the one place that turns a decoder's settings into a policy."""

from __future__ import annotations

from typing import assert_never

from psd_core.config import DecoderConfig
from psd_core.policies.base import Policy, denoise
from psd_core.policies.confidence import Greedy, Threshold, TopK

__all__ = ["Greedy", "Policy", "Threshold", "TopK", "denoise", "make_policy"]


def make_policy(decoder: DecoderConfig) -> Policy:
    """The policy that `decoder` names, with its parameters."""
    match decoder.policy:
        case "greedy":
            return Greedy()
        case "topk":
            return TopK(decoder.k)
        case "threshold":
            return Threshold(decoder.threshold)
        case _ as unknown:
            assert_never(unknown)
