"""How the ranks of a worker come together: the same configuration, the same checkpoint, a part of the model each.

A fault that any rank finds while loading is told by rank 0; the others then wait to be ended.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import torch

from psd_core.errors import CheckpointError, ConfigError
from psd_core.follower import Follower
from psd_core.models.group import Alone, Group, Ranks
from psd_core.models.layers import DiffusionDecoder
from psd_core.models.loader import OnProgress, load_model, resolve_device
from psd_core.models.memory import context_bytes, describe_bytes
from psd_core.models.shard import Shard
from psd_core.models.threads import faster_threads
from server.heap import HeapTrimmer, system_trim
from server.messages import WorkerConfig

logger = logging.getLogger(__name__)


def join(config: WorkerConfig) -> Group:
    """The ranks of this worker, once all are there. ConfigError or CheckpointError if there is no device for each."""
    if config.tensor_parallel_size == 1:
        return Alone()
    shard = Shard(config.rank, config.tensor_parallel_size)
    return Ranks(shard, Path(config.meeting), resolve_device(pick_device(config)))


def load_part(config: WorkerConfig, group: Group, on_progress: OnProgress) -> DiffusionDecoder:
    """This rank's part of the model. CheckpointError or ConfigError on every rank if any cannot have its own.

    Sets torch's threads.
    """
    if config.threads or config.max_threads:
        torch.set_num_threads(config.threads or config.max_threads)
    load = _loader(config, group, on_progress)
    if config.tensor_parallel_size == 1:
        alone = load()
        if alone.device.type == "cpu" and not config.threads and config.max_threads:
            torch.set_num_threads(faster_threads(alone.spec, alone.dtype, config.max_threads))
        return alone
    fault, model = "", None
    try:
        model = load()
    except (CheckpointError, ConfigError) as error:
        fault = str(error)
    fault = group.first_fault(fault)
    if model is None or fault:
        raise CheckpointError(fault)
    size = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    logger.info(
        "rank %d of %d holds %s of weights and %s of keys and values per token of context on %s",
        *(group.shard.rank, group.shard.size, describe_bytes(size)),
        *(describe_bytes(context_bytes(model.local, model.dtype)), model.device),
    )
    return model


def follow(config: WorkerConfig) -> NoReturn:
    """What a rank other than the first does. Returns never; RuntimeError if a forward fails."""
    try:
        follower = Follower(load_part(config, join(config), lambda done, total: None))
    except (CheckpointError, ConfigError) as error:
        logger.debug("rank %d waits to be ended: %s", config.rank, error)
        threading.Event().wait()
        raise AssertionError("nobody sets the event") from error
    follower.run(HeapTrimmer(time.monotonic, system_trim()).pass_by)
    raise SystemExit(1)


def pick_device(config: WorkerConfig) -> str:
    """The device asked for; an unnumbered GPU becomes the one of this replica's and rank's turn."""
    size = config.tensor_parallel_size
    if config.device not in ("auto", "cuda"):
        return config.device
    count = torch.cuda.device_count()
    if 0 < count < size:
        raise ConfigError(
            "tensor_parallel_size",
            f"--tensor-parallel-size must be at most the number of GPUs, {count}, got {size}",
        )
    if count < 2:
        return config.device
    return f"cuda:{(config.replica_index * size + config.rank) % count}"


def _loader(config: WorkerConfig, group: Group, on_progress: OnProgress) -> Callable[[], DiffusionDecoder]:
    return lambda: load_model(
        config.path,
        config.dtype,
        pick_device(config),
        tokenizer_path=Path(config.tokenizer),
        on_progress=on_progress,
        group=group,
        quantization=config.quantization,
    )
