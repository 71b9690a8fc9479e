"""From settings to a served model: find the checkpoint, read its text side, start the workers.

Runs beside the server, which already answers /health.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from psd_core.errors import CheckpointError, ConfigError
from server.admission import Admission
from server.chat_template import ChatTemplate, load_chat_template
from server.checkpoints import resolve_source
from server.messages import ModelFacts, WorkerConfig
from server.settings import ModelSettings, Settings, fit_decoder
from server.state import AppState
from server.tokenizer import Tokenizer

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Hooks:
    """Whom to tell: the model is served; or it never will be, and why."""

    on_ready: Callable[[Admission], None] = lambda admission: None
    on_failed: Callable[[str], None] = lambda reason: None


@dataclass(frozen=True, slots=True)
class Source:
    """What is read of a checkpoint without torch."""

    folder: Path
    tokenizer_folder: Path
    tokenizer: Tokenizer
    template: ChatTemplate | None


async def boot(state: AppState, hooks: Hooks) -> None:
    """Start the workers and stay until they have failed for good. Never raises; `state.failure` says why it ended."""
    try:
        source = await read_source(state.settings.model)
        state.pool.start(
            worker_config(state.settings, source),
            state.settings.model.replicas,
            state.settings.model.forward_seconds,
            lambda facts: _serve(state, source, facts, hooks),
        )
        state.failure = await state.pool.wait_failed()
    except CheckpointError as error:
        state.failure = str(error)
    except Exception:  # whatever it is, the process must say so and end, not wait for ever
        logger.exception("the server cannot start")
        state.failure = "the server cannot start; the log has the details"
    hooks.on_failed(state.failure)


def _serve(state: AppState, source: Source, facts: ModelFacts, hooks: Hooks) -> None:
    """A worker is ready. Later ones, and restarted ones, have the same facts."""
    is_first = state.admission is None
    try:
        decoder = fit_decoder(state.settings.requests, facts.limits)
    except ConfigError as error:
        state.failure = str(error)
        hooks.on_failed(state.failure)
        return
    state.admission = Admission(
        tokenizer=source.tokenizer,
        template=source.template,
        facts=facts,
        settings=replace(state.settings.requests, decoder=decoder),
        max_open=state.max_open,
    )
    if is_first:
        hooks.on_ready(state.admission)


async def read_source(model: ModelSettings) -> Source:
    """Tokenizer and chat template of a checkpoint, which is fetched if need be. CheckpointError if that fails."""
    folder = await resolve_source(model.source)
    tokenizer_folder = folder
    if model.tokenizer is not None:
        tokenizer_folder = await resolve_source(model.tokenizer, is_tokenizer=True)
    return await asyncio.to_thread(_read_files, model, folder, tokenizer_folder)


def _read_files(model: ModelSettings, folder: Path, tokenizer_folder: Path) -> Source:
    tokenizer = Tokenizer(tokenizer_folder)
    override = Path(model.chat_template) if model.chat_template is not None else None
    return Source(folder, tokenizer_folder, tokenizer, load_chat_template(tokenizer, tokenizer_folder, override))


def worker_config(settings: Settings, source: Source) -> WorkerConfig:
    """What a worker is told; `replica_index` and `address` are filled in by who starts it."""
    return WorkerConfig(
        checkpoint=str(source.folder),
        tokenizer=str(source.tokenizer_folder),
        dtype=settings.model.dtype,
        device=settings.model.device,
        replica_index=0,
        engine=settings.engine,
        log_level=settings.log_level,
        log_format=settings.log_format,
        threads=settings.model.threads,
        max_threads=settings.model.max_threads,
        address="",
        tensor_parallel_size=settings.model.tensor_parallel_size,
        compiles=settings.model.compiles,
        cuda_graphs=settings.model.cuda_graphs,
        quantization=settings.model.quantization,
    )
