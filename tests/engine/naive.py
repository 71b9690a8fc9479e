"""A naive decoder: one request, one row, no drafts, no batch. The judge of everything the engine does.

Written from the specification with plain Python data and `plain_forward`; shares no decoding code with psd_core.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from psd_core.models.layers import DiffusionDecoder
from psd_core.request import Request
from tests.engine.tiny import CACHED, plain_forward

_WORD = 2**64


@dataclass(frozen=True)
class NaiveResult:
    """What a request gets: tokens up to the end, their log-probabilities, why it ended, forwards it took."""

    token_ids: list[int]
    logprobs: list[float]
    reason: str
    forwards: int


def naive_decode(model: DiffusionDecoder, request: Request) -> NaiveResult:
    """Decode `request` with its policy alone, one forward per denoising step."""
    decoder, num_prompt, spec = request.decoder, len(request.prompt_ids), model.spec
    length = decoder.block_length
    grid = 0 if spec.attention == "block-causal" else num_prompt
    stop_of_canvas = grid + math.ceil((num_prompt + request.max_tokens - grid) / length) * length
    if request.suffix_ids:
        stop_of_canvas = num_prompt + request.max_tokens
    canvas: list[int | None] = [*request.prompt_ids, *[None] * (stop_of_canvas - num_prompt), *request.suffix_ids]
    logprobs: dict[int, float] = {}
    forwards = 0
    for block_start in range(grid + (num_prompt - grid) // length * length, stop_of_canvas, length):
        block = range(block_start, min(block_start + length, stop_of_canvas))
        stop = len(canvas) if spec.attention == "full" else block_start + length
        if decoder.canvas_blocks is not None and not request.suffix_ids:
            stop = min(stop, block_start + (1 + decoder.canvas_blocks) * length)
        first = max(0, block_start - 1) if spec.is_shifted else block_start  # of the logits, below
        outside: CACHED | None = None
        while any(canvas[pos] is None for pos in block):
            fed = [spec.mask_id if token is None else token for token in canvas[:stop]]
            window = range(first, stop if decoder.cache == "prefix" else block.stop)
            if decoder.cache in ("none", "causal") or outside is None:
                logits, cached = plain_forward(model, fed, 0, None, open_start=block_start)
                logits = logits[first:]
                keep = [pos for pos in range(stop) if pos not in window]
                outside = [(k[keep], v[keep]) for k, v in cached]
            else:
                logits, _ = plain_forward(model, [fed[pos] for pos in window], first, outside)
            forwards += 1
            decided = [token for token in canvas[num_prompt:stop_of_canvas] if token is not None]
            found = {
                pos: _candidate(logits[pos - first - int(spec.is_shifted)], pos - num_prompt, model, request, decided)
                for pos in block
                if canvas[pos] is None
            }
            # A context-causal block opens with its first token alone.
            opens = spec.attention == "context-causal" and canvas[block_start] is None
            for pos in [block_start] if opens else _policy(found, request):
                canvas[pos], logprobs[pos] = found[pos].token, found[pos].logprob
            ended = _end(canvas[num_prompt:], request)
            if ended is not None:
                count, reason = ended
                tokens = [token for token in canvas[num_prompt : num_prompt + count] if token is not None]
                return NaiveResult(tokens, [logprobs[num_prompt + i] for i in range(count)], reason, forwards)
    raise AssertionError("a full canvas always ends a request")


@dataclass(frozen=True)
class Found:
    """The candidate of one position: token, log-probability at temperature 1, entropy, lead over the second best."""

    token: int
    logprob: float
    entropy: float
    margin: float


def _candidate(logits: Tensor, index: int, model: DiffusionDecoder, request: Request, decided: list[int]) -> Found:
    logits = logits.clone()
    for token in {*request.prompt_ids, *request.suffix_ids, *decided}:
        penalty = request.sampling.repetition_penalty
        logits[token] = logits[token] / penalty if logits[token] > 0 else logits[token] * penalty
    for token in set(decided):
        logits[token] -= request.sampling.presence_penalty + request.sampling.frequency_penalty * decided.count(token)
    for token, bias in request.sampling.logit_bias:
        logits[token] += bias
    log_probability = torch.log_softmax(logits, dim=-1)
    allowed = logits.clone()
    allowed[model.spec.mask_id] = -math.inf
    if index < request.min_tokens:
        for stop_id in request.stop_ids:
            allowed[stop_id] = -math.inf
    sampling = request.sampling
    if sampling.temperature == 0:
        token = int(allowed.argmax())
    else:
        scaled = [value / sampling.temperature for value in allowed.tolist()]
        order = sorted(range(len(scaled)), key=lambda t: -scaled[t])
        if sampling.min_p:
            order = [t for t in order if scaled[t] >= scaled[order[0]] + math.log(sampling.min_p)]
        if sampling.top_k:
            order = order[: sampling.top_k]
        total = sum(math.exp(scaled[t]) for t in order)
        kept: list[int] = []
        mass = 0.0
        for t in order:
            if mass >= sampling.top_p and kept:
                break
            kept.append(t)
            mass += math.exp(scaled[t]) / total
        noise = {t: plain_gumbel(sampling.seed, sampling.choice_index, index, t) for t in kept}
        token = max(kept, key=lambda t: scaled[t] + noise[t])
    probability = log_probability.exp()
    first, second = sorted(float(probability[t]) for t in range(len(probability)) if allowed[t] > -math.inf)[:-3:-1]
    return Found(token, float(log_probability[token]), -float((probability * log_probability).sum()), first - second)


def _policy(found: dict[int, Found], request: Request) -> list[int]:
    decoder = request.decoder
    ranked = sorted(found, key=lambda pos: (-found[pos].logprob, pos))
    confidence = {pos: math.exp(found[pos].logprob) for pos in ranked}
    match decoder.policy:
        case "greedy":
            return ranked[:1]
        case "topk":
            return ranked[: decoder.k]
        case "threshold":
            return [pos for pos in ranked if confidence[pos] >= decoder.threshold] or ranked[:1]
        case "factor":
            count = 1
            while count < len(ranked) and confidence[ranked[count]] >= 1 - decoder.factor / (count + 2):
                count += 1
            return ranked[:count]
        case "entropy":
            rising = sorted(found, key=lambda pos: (found[pos].entropy, pos))
            count = 1
            while count < len(rising) and sum(found[pos].entropy for pos in rising[:count]) <= decoder.gamma:
                count += 1
            return rising[:count]
        case "margin":
            clearest = sorted(found, key=lambda pos: (-found[pos].margin, pos))
            return [pos for pos in clearest if found[pos].margin >= decoder.threshold] or clearest[:1]
        case "localleap":
            anchors = [pos for pos in ranked if confidence[pos] >= decoder.threshold]
            near = [
                pos
                for pos in ranked
                if any(abs(pos - anchor) <= decoder.window for anchor in anchors)
                and (pos in anchors or confidence[pos] >= decoder.relaxed_threshold)
            ]
            return near or ranked[:1]
        case "lopa":
            raise NotImplementedError("lopa needs rows beside the block's own state")


def _end(generated: list[int | None], request: Request) -> tuple[int, str] | None:
    for index, token in enumerate(generated[: request.max_tokens]):
        if token is None:
            return None
        if token in request.stop_ids:
            return index + 1, "stop"
    return request.max_tokens, "length"


def plain_gumbel(seed: int, choice: int, position: int, token_id: int) -> float:
    """The keyed noise in Python's own integers."""
    gamma = 0x9E3779B97F4A7C15
    key = _splitmix(seed + gamma)
    key = _splitmix((key ^ choice) + gamma)
    key = _splitmix((key ^ position) + gamma)
    bits = _splitmix(key + (token_id + 1) * gamma)
    return -math.log(-math.log(((bits >> 11) + 0.5) * 2.0**-53))


def _splitmix(value: int) -> int:
    value %= _WORD
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 % _WORD
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB % _WORD
    return value ^ (value >> 31)
