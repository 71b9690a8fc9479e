"""Transfer policies, and the one place that turns a decoder's settings into a policy."""

from __future__ import annotations

from typing import assert_never

from psd_core.config import DecoderConfig
from psd_core.policies.base import Policy, Statistic, denoise
from psd_core.policies.confidence import Factor, Greedy, LocalLeap, Threshold, TopK
from psd_core.policies.opening import OpensAlone
from psd_core.policies.uncertainty import Entropy, Margin

__all__ = [
    "Entropy",
    "Factor",
    "Greedy",
    "LocalLeap",
    "Margin",
    "OpensAlone",
    "Policy",
    "Statistic",
    "Threshold",
    "TopK",
    "denoise",
    "make_policy",
]


def make_policy(decoder: DecoderConfig, *, opens_alone: bool = False) -> Policy:
    """The policy that `decoder` names, with its parameters; `opens_alone` as in `OpensAlone`."""
    policy = _named_policy(decoder)
    return OpensAlone(policy) if opens_alone else policy


def _named_policy(decoder: DecoderConfig) -> Policy:
    match decoder.policy:
        case "greedy":
            return Greedy()
        case "topk":
            return TopK(decoder.k)
        case "threshold":
            return Threshold(decoder.threshold)
        case "factor":
            return Factor(decoder.factor)
        case "entropy":
            return Entropy(decoder.gamma)
        case "margin":
            return Margin(decoder.threshold)
        case "localleap":
            return LocalLeap(decoder.threshold, decoder.relaxed_threshold, decoder.window)
        case "lopa":  # its anchor: the branches are made elsewhere (psd_core.speculation.lopa)
            return Threshold(decoder.threshold)
        case _ as unknown:
            assert_never(unknown)
