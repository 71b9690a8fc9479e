"""Drives an engine in tests, and the hypothesis strategies for requests."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from hypothesis import strategies as st

from psd_core.config import (
    ACCEPTANCE_NAMES,
    POLICY_NAMES,
    AcceptanceName,
    CacheName,
    DecoderConfig,
    EngineConfig,
    PolicyName,
)
from psd_core.engine import Engine
from psd_core.events import FinishedEvent, StepOutput, TopEntries
from psd_core.graphs import Recorder
from psd_core.kvcache.modes import BIDIRECTIONAL_CACHES
from psd_core.models.layers import DiffusionDecoder
from psd_core.request import Request, SamplingParams
from tests.engine.tiny import MASK_ID, VOCAB_SIZE


@dataclass
class Outcome:
    """Everything an engine said about one request."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top: list[TopEntries] = field(default_factory=list)
    prompt_logprobs: list[float] = field(default_factory=list)
    prompt_top: list[TopEntries] = field(default_factory=list)
    finished: FinishedEvent | None = None


class Driver:
    """Collects events by request and checks what must hold for every stream of events."""

    def __init__(
        self, model: DiffusionDecoder, config: EngineConfig | None = None, recorder: Recorder | None = None
    ) -> None:
        self.engine = Engine(model, config or EngineConfig(max_num_batched_tokens=4096), recorder=recorder)
        self.outcomes: dict[str, Outcome] = {}
        self.forwards = 0

    def add(self, request: Request) -> None:
        self.engine.add(request)
        self.outcomes[request.request_id] = Outcome()

    def step(self) -> StepOutput:
        output = self.engine.step()
        self.forwards += output.report is not None
        for prompt in output.prompts:
            outcome = self.outcomes[prompt.request_id]
            assert not outcome.prompt_logprobs, "a prompt scored twice"
            assert not outcome.token_ids, "tokens before the prompt's scores"
            outcome.prompt_logprobs += prompt.logprobs
            outcome.prompt_top += prompt.top
        for event in output.tokens:
            outcome = self.outcomes[event.request_id]
            assert outcome.finished is None, "tokens after the terminal event"
            assert event.token_ids, "an empty event"
            outcome.token_ids += event.token_ids
            outcome.logprobs += event.logprobs
            outcome.top += event.top
        for end in output.finished:
            outcome = self.outcomes[end.request_id]
            assert outcome.finished is None, "two terminal events"
            outcome.finished = end
        self.engine.check_integrity()
        return output

    def run(self) -> None:
        while self.engine.has_work():
            self.step()
        assert all(outcome.finished for outcome in self.outcomes.values()), "a request ended in silence"


def assert_all_as_alone(driver: Driver, plain: DiffusionDecoder, requests: Sequence[Request]) -> None:
    """Requests that join one forward after the other get what each gets alone from `plain`."""
    for request in requests:
        driver.add(request)
        driver.step()
    driver.run()
    for request in requests:
        assert_same(driver.outcomes[request.request_id], run_alone(plain, request)[0])


def assert_same(outcome: Outcome, alone: Outcome) -> None:
    """Everything said about a request is what is said when nobody else is there; numbers up to rounding.

    An outcome that was cut short must be the beginning of the other.
    """
    count = len(outcome.token_ids)
    assert outcome.token_ids == alone.token_ids[:count]
    np.testing.assert_allclose(outcome.logprobs, alone.logprobs[:count], atol=1e-3)
    assert_same_top(outcome.top, alone.top[: len(outcome.top)])
    if outcome.prompt_logprobs or outcome.token_ids:
        np.testing.assert_allclose(outcome.prompt_logprobs, alone.prompt_logprobs, atol=1e-3)
        assert_same_top(outcome.prompt_top, alone.prompt_top)


def assert_same_top(top: list[TopEntries], alone: list[TopEntries]) -> None:
    """As many alternatives everywhere, with the same numbers; equal numbers may stand in any order."""
    assert [len(entries) for entries in top] == [len(entries) for entries in alone]
    for entries, others in zip(top, alone, strict=True):
        np.testing.assert_allclose([entry[1] for entry in entries], [other[1] for other in others], atol=1e-3)


def run_after(driver: Driver, request: Request) -> tuple[Outcome, FinishedEvent]:
    """The outcome of `request` on an engine that served others before."""
    driver.add(request)
    driver.run()
    outcome = driver.outcomes[request.request_id]
    assert outcome.finished is not None
    return outcome, outcome.finished


def run_alone(model: DiffusionDecoder, request: Request) -> tuple[Outcome, FinishedEvent]:
    """The batch-of-one outcome of `request`."""
    return run_after(Driver(model), request)


def churn(model: DiffusionDecoder, added: list[Request], rng: random.Random) -> int:
    """Tokens reused while these requests join and are cancelled with little room, each answering as it does alone."""
    driver = Driver(model, EngineConfig(max_num_seqs=4, max_num_batched_tokens=64, max_cache_tokens=220))
    for request in added:
        driver.add(request)
        for _ in range(rng.randrange(4)):
            driver.step()
        if rng.random() < 0.15:
            driver.engine.cancel(request.request_id)
    driver.run()
    reused = 0
    for request in added:
        outcome = driver.outcomes[request.request_id]
        assert outcome.finished is not None
        reused += outcome.finished.figures.reused_tokens
        if outcome.finished.reason != "cancelled":
            assert outcome.token_ids == run_alone(model, request)[0].token_ids
    return reused


def make_stems(rng: random.Random, count: int) -> list[tuple[int, ...]]:
    """Texts that prompts begin with."""
    return [tuple(rng.randrange(VOCAB_SIZE) for _ in range(16)) for _ in range(count)]


def begin_alike(rng: random.Random, stems: list[tuple[int, ...]], tail_sizes: tuple[int, int]) -> tuple[int, ...]:
    """A prompt: the beginning of a stem, then a tail of its own, of `tail_sizes` tokens at least and at most."""
    tail = (rng.randrange(VOCAB_SIZE) for _ in range(rng.randint(*tail_sizes)))
    return (*rng.choice(stems)[: rng.choice((4, 9, 16))], *tail)


@st.composite
def decoders(
    draw: st.DrawFn,
    policies: tuple[PolicyName, ...] = POLICY_NAMES,
    caches: tuple[CacheName, ...] = BIDIRECTIONAL_CACHES,
    acceptances: tuple[AcceptanceName, ...] = ACCEPTANCE_NAMES,
    block_length: int | None = None,
    has_auto_depth: bool = False,
) -> DecoderConfig:
    acceptance = draw(st.sampled_from(acceptances))
    increments = [1, 1, 2, 3, "policy"] + ["subsets", "subsets"] * (acceptance == "exact")
    return DecoderConfig(
        policy=draw(st.sampled_from(policies)),
        k=draw(st.integers(1, 4)),
        threshold=draw(st.sampled_from([0.0, 0.2, 0.4, 0.6, 0.9, 1.0])),
        factor=draw(st.sampled_from([0.2, 1.0, 1.5, 3.0])),
        gamma=draw(st.sampled_from([0.0, 0.1, 1.0, 6.0])),
        relaxed_threshold=draw(st.sampled_from([0.1, 0.3, 0.75])),
        window=draw(st.integers(0, 4)),
        branches=draw(st.integers(1, 6)),
        block_length=block_length or draw(st.sampled_from([1, 3, 4, 8])),
        draft_depth="auto" if has_auto_depth and draw(st.booleans()) else draw(st.integers(0, 7)),
        draft_increment=draw(st.sampled_from(increments)),
        acceptance=acceptance,
        cache=draw(st.sampled_from(caches)),
        canvas_blocks=draw(st.sampled_from([None, None, 0, 1, 2])),
    )


@st.composite
def samplings(draw: st.DrawFn) -> SamplingParams:
    sampling = SamplingParams()
    if draw(st.integers(0, 3)) == 0:
        sampling = SamplingParams(
            presence_penalty=draw(st.sampled_from([0.0, 1.5, -1.0])),
            frequency_penalty=draw(st.sampled_from([0.0, 0.7, -0.3])),
            repetition_penalty=draw(st.sampled_from([1.0, 1.3, 0.8])),
            logit_bias=draw(st.sampled_from([(), ((5, 4.0), (9, -100.0)), ((7, 100.0),)])),
        )
    if draw(st.booleans()):
        return sampling
    return replace(
        sampling,
        temperature=draw(st.sampled_from([0.3, 1.0, 1.7])),
        min_p=draw(st.sampled_from([0.0, 0.0, 0.1, 1.0])),
        top_p=draw(st.sampled_from([1.0, 0.9, 0.5])),
        top_k=draw(st.sampled_from([0, 1, 5])),
        seed=draw(st.integers(-(2**63), 2**63 - 1)),
        choice_index=draw(st.integers(0, 3)),
    )


@st.composite
def requests(
    draw: st.DrawFn, request_id: str = "r", decoder: st.SearchStrategy[DecoderConfig] | None = None
) -> Request:
    max_tokens = draw(st.integers(1, 24))
    chosen = draw(decoder if decoder is not None else decoders())
    can_have_suffix = chosen.cache != "causal" and draw(st.integers(0, 3)) == 0
    return Request(
        request_id=request_id,
        # Nothing but masks looks the same from every position: then rounding alone would choose.
        prompt_ids=(
            draw(st.integers(0, MASK_ID - 1)),
            *draw(st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=11)),
        ),
        max_tokens=max_tokens,
        decoder=chosen,
        suffix_ids=tuple(draw(st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=6)))
        if can_have_suffix
        else (),
        sampling=draw(samplings()),
        stop_ids=frozenset(draw(st.lists(st.integers(0, VOCAB_SIZE - 2), max_size=6))),
        min_tokens=draw(st.integers(0, max_tokens)) if draw(st.booleans()) else 0,
        granularity=draw(st.sampled_from(["block", "frontier"])),
    )


@st.composite
def mixed_requests(draw: st.DrawFn, request_id: str = "r") -> Request:
    """Requests that also edit tokens, score their prompt, ask for alternatives, watch, or generate nothing."""
    request = draw(requests(request_id=request_id, decoder=decoders(has_auto_depth=True)))
    decoder = request.decoder
    if decoder.acceptance == "exact" and decoder.policy != "lopa" and draw(st.integers(0, 2)) == 0:
        decoder = replace(decoder, edit_threshold=draw(st.sampled_from([0.1, 0.4, 0.9])), max_edit_passes=3)
    score_prompt = draw(st.integers(0, 2)) == 0
    has_answer = not score_prompt or draw(st.booleans())
    return replace(
        request,
        decoder=decoder,
        watch=draw(st.booleans()),
        score_prompt=score_prompt,
        num_top_logprobs=draw(st.sampled_from([0, 0, 1, 5])),
        max_tokens=request.max_tokens if has_answer else 0,
        min_tokens=request.min_tokens if has_answer else 0,
    )
