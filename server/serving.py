"""How both generation endpoints answer: admit, generate, then one object or a stream of chunks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from server.admission import Admission
from server.body import JsonObject, read_json
from server.disconnect import until_disconnect
from server.errors import ApiError
from server.finish import log_end
from server.generation import Canvas, Delta, End, Generation, Patience, Prompt, Token
from server.job import Job
from server.ranking import keep_best
from server.render import Dialect, Renderer
from server.sse import EventStream
from server.state import AppState, state_of
from server.tuning import INLINE_TEXT_CHARS

Admit = Callable[[Admission, JsonObject], Job]
CLIENT_LEFT = 499  # nobody reads it


async def serve(request: Request, admit: Admit, dialect: Dialect) -> Response:
    """Answer one generation request. Everything that can be refused is refused before the first byte."""
    arrival = time.monotonic()
    state = state_of(request)
    state.quotas.count(request.scope["psd.key_name"])
    admission = state.require_ready()
    body = await read_json(request, state.settings.http)
    name = body.get("model")
    if isinstance(name, str):
        state.require_model(name)
    job = await _admit(admission, body, admit)
    state.require_ready()
    state.require_room(len(job.choices))
    generation = Generation(job, dialect.endpoint, state.pool, admission.tokenizer, state.metrics, arrival)
    renderer = Renderer(job, dialect, admission.tokenizer, int(time.time()))
    return await _answer(request, state, generation, renderer)


async def _admit(admission: Admission, body: JsonObject, admit: Admit) -> Job:
    """Long texts are tokenized in a thread: the event loop keeps answering."""
    if _num_chars(body) <= INLINE_TEXT_CHARS:
        return admit(admission, body)
    return await asyncio.to_thread(admit, admission, body)


def _num_chars(value: object) -> int:
    """Characters of all strings, and one for each other leaf."""
    if isinstance(value, dict):
        return sum(_num_chars(entry) for entry in value.values())
    if isinstance(value, list):
        return sum(_num_chars(entry) for entry in value)
    return len(value) if isinstance(value, str) else 1


async def _answer(request: Request, state: AppState, generation: Generation, renderer: Renderer) -> Response:
    key_name: str = request.scope["psd.key_name"]
    patience = state.settings.requests
    leave = state.quotas.enter(key_name, len(generation.job.choices))

    def close() -> None:
        leave()
        generation.close()
        if generation.failure is not None and generation.job.wants_stream:  # a status is counted where it is sent
            state.metrics.failed(generation.failure.code)
        log_end(generation, key_name)
        state.traces.record(generation, request.headers, request.scope["psd.request_id"])

    try:
        generation.start()
    except ApiError:
        leave()
        raise
    if generation.job.wants_stream:
        chunks = _chunks(generation, renderer, patience)
        http = state.settings.http
        return EventStream(chunks, http.ping_seconds, http.drain_seconds, close, generation.fail)
    try:
        answer = await until_disconnect(request, _whole(generation, renderer, patience))
    finally:
        close()
    return Response(status_code=CLIENT_LEFT) if answer is None else JSONResponse(answer)


async def _whole(generation: Generation, renderer: Renderer, patience: Patience) -> JsonObject:
    choices = generation.job.choices
    texts = {choice.index: [choice.echo] for choice in choices}
    tokens: dict[int, list[Token]] = {choice.index: [] for choice in choices}
    num_echoed = dict.fromkeys(texts, 0)
    async with aclosing(generation.updates(patience)) as updates:
        async for update in updates:
            if isinstance(update, Prompt):
                tokens[update.index] += update.tokens
                num_echoed[update.index] = len(update.tokens)
            elif isinstance(update, Delta):
                texts[update.index].append(update.text)
                tokens[update.index] += update.tokens
    indices = [choice.index for choice in choices]
    generated = [tokens[index][num_echoed[index] :] for index in indices]
    return renderer.whole(
        ["".join(texts[index]) for index in indices],
        [tokens[index] for index in indices],
        [generation.ends[index] for index in indices],
        keep_best(generated, generation.job.num_choices, generation.job.num_returned),
        [num_echoed[index] for index in indices],
    )


async def _chunks(generation: Generation, renderer: Renderer, patience: Patience) -> AsyncGenerator[JsonObject, None]:
    """The chunks of a stream. Tokens that bring no text yet travel with the next chunk of their choice."""
    pending: dict[int, tuple[Token, ...]] = {choice.index: () for choice in generation.job.choices}
    for choice in generation.job.choices:
        opening = renderer.opening(choice)
        if opening is not None:
            yield opening
    async with aclosing(generation.updates(patience)) as updates:
        async for update in updates:
            match update:
                case Prompt(index, tokens):
                    yield renderer.prompt(generation.job.choices[index], tokens)
                case Delta(index, text, tokens):
                    pending[index] += tokens
                    part = renderer.part(index, text, pending[index], generation.num_tokens) if text else None
                    if part is not None:
                        yield part
                        pending[index] = ()
                case Canvas():
                    yield renderer.canvas(update)
                case End(index):
                    rest = renderer.rest(index, pending[index], generation.num_tokens)
                    if rest is not None:
                        yield rest
                        pending[index] = ()
                    yield renderer.last(update, pending[index], generation.num_tokens)
    if generation.job.wants_usage:
        yield renderer.usage([generation.ends[choice.index] for choice in generation.job.choices])
