"""Requests of every kind, mixed, deterministic each: what a server must answer alike alone and in any company."""

from __future__ import annotations

import random
from typing import Any

Body = dict[str, Any]

POLICIES = ("greedy", "topk", "threshold", "factor", "entropy", "margin", "localleap", "lopa")


def draw_requests(chance: random.Random, num_requests: int, model: str = "soak") -> list[tuple[str, Body]]:
    """(path, body) of distinct requests of mixed sizes, decoders and settings; sampled ones have a seed.

    What a model cannot serve (caches, suffixes) is among them: it answers those with 400.
    """
    return [_draw(chance, index, model) for index in range(num_requests)]


def is_streamable(body: Body) -> bool:
    """Whether the request may be asked with `stream`."""
    return "best_of" not in body


def _draw(chance: random.Random, index: int, model: str) -> tuple[str, Body]:
    words = " ".join(chance.choice(["sort", "7", "add", "write", "blue", "42"]) for _ in range(chance.randint(1, 20)))
    body: Body = {"model": model, "max_tokens": chance.choice([1, 5, 16, 40, 96]), "n": chance.choice([1, 1, 2])}
    body |= _sampling(chance, index)
    if chance.random() < 0.5:
        body["ignore_eos"] = True
    if chance.random() < 0.3:
        body["stop"] = ["e", "\n"]
    if chance.random() < 0.2:
        body["min_tokens"] = 1
    body["psd"] = _decoder(chance)
    if index % 3 == 0:
        if chance.random() < 0.3:
            body |= {"logprobs": True, "top_logprobs": chance.choice([0, 3])}
        if chance.random() < 0.3:
            body["max_completion_tokens"] = body.pop("max_tokens")
        return "/v1/chat/completions", body | {"messages": [{"role": "user", "content": words}]}
    if chance.random() < 0.2:
        body["suffix"] = " and the rest."
    if chance.random() < 0.2:
        body |= {"logprobs": chance.choice([0, 2])}
    if chance.random() < 0.2:
        body |= {"echo": True, "logprobs": 2, "max_tokens": chance.choice([0, 8]), "min_tokens": 0}
    if chance.random() < 0.15:
        body["best_of"] = body["n"] + 1
    return "/v1/completions", body | {"prompt": words}


def _sampling(chance: random.Random, index: int) -> Body:
    fields: Body = {}
    if chance.random() < 0.3:
        fields |= {"temperature": 0.9, "top_p": 0.9, "seed": index, "min_p": chance.choice([0, 0.05])}
    if chance.random() < 0.2:
        fields |= {"presence_penalty": 0.8, "frequency_penalty": 0.3}
    if chance.random() < 0.15:
        fields["repetition_penalty"] = 1.2
    if chance.random() < 0.15:
        fields["logit_bias"] = {"20": 3, "30": -100}
    return fields


def _decoder(chance: random.Random) -> Body:
    decoder: Body = {
        "policy": chance.choice(POLICIES),
        "draft_depth": chance.randint(0, 5),
        "acceptance": chance.choice(["exact", "exact", "subset", "token"]),
        "block_length": chance.choice([8, 16, 32]),
        "cache": chance.choice(["none", "none", "prefix", "dual"]),
    }
    if decoder["policy"] == "lopa":
        decoder["branches"] = chance.randint(1, 4)
    elif decoder["acceptance"] == "exact" and chance.random() < 0.4:
        decoder |= {"edit_threshold": chance.choice([0.3, 0.9]), "max_edit_passes": 4}
    return decoder
