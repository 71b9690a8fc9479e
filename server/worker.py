"""The worker process: owns one model and its engine. Receive → step → send, until the API process is gone.

Started by `server.processes`, which passes the configuration as the one argument. Its standard input is a pipe that
the API process never writes to: when it closes, whatever the reason, the worker ends at once, also in the middle of a
forward. With --tensor-parallel-size this is rank 0 of several such processes; the others only follow (`server.ranks`).
"""

from __future__ import annotations

import ctypes
import dataclasses
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import zmq

from psd_core.config import EngineConfig
from psd_core.engine import Engine
from psd_core.errors import CheckpointError, ConfigError, RequestError
from psd_core.graphs import cuda_recorder
from psd_core.models.compiling import compile_layers
from server.codec import open_codec
from server.heap import HeapTrimmer, system_trim
from server.logs import configure_logging
from server.messages import (
    Add,
    Alive,
    Broken,
    Cancel,
    ModelFacts,
    Ping,
    Ready,
    Refused,
    Stepped,
    ToServer,
    WorkerConfig,
    decode_config,
    decode_to_worker,
    encode,
)
from server.progress import loading_bar
from server.ranks import follow, join, load_part

logger = logging.getLogger(__name__)

IDLE_POLL_MILLISECONDS = 10_000  # a message wakes the poll; the pipe on stdin ends the process
LINGER_MILLISECONDS = 1_000  # for the last message of a broken worker
PR_SET_PDEATHSIG = 1  # of Linux's prctl


class Worker:
    """The receive–step–send loop around one engine. Owns the engine and the socket."""

    def __init__(self, engine: Engine, socket: zmq.Socket[bytes]) -> None:
        self._engine = engine
        self._socket = socket
        self._heap = HeapTrimmer(time.monotonic, system_trim())

    def run(self) -> NoReturn:
        """Serve until the process ends."""
        while True:
            self._receive()
            if self._engine.has_work():
                self._send(Stepped(self._engine.step()))
            self._heap.pass_by()

    def _receive(self) -> None:
        """Take every message that waits; block only while the engine has nothing to do."""
        timeout = 0 if self._engine.has_work() else IDLE_POLL_MILLISECONDS
        while self._socket.poll(timeout):
            timeout = 0
            match decode_to_worker(self._socket.recv()):
                case Add(request, sent_seconds):
                    try:
                        # A forward may have been under way: what it made the request wait is the queue's time, too.
                        self._engine.add(request, sent_seconds)
                    except RequestError as error:
                        self._send(Refused(request.request_id, error.param, error.code, error.message))
                case Cancel(request_id):
                    self._engine.cancel(request_id)
                case Ping():
                    self._send(Alive())

    def _send(self, message: ToServer) -> None:
        self._socket.send(encode(message))


def main() -> None:
    """Connect, load, serve; tell the API process why if that ends."""
    config = decode_config(sys.argv[1])
    configure_logging(config.log_level, config.log_format)
    _die_with_parent()
    threading.Thread(target=_end_with_parent, name="parent-watch", daemon=True).start()
    if config.rank:
        follow(config)
    context = zmq.Context()
    socket: zmq.Socket[bytes] = context.socket(zmq.PAIR)
    socket.set_hwm(0)
    socket.linger = LINGER_MILLISECONDS
    socket.connect(config.address)
    try:
        engine, facts = load_engine(config, lambda request_ids: _tell_begun(config.begun_fd, request_ids))
        socket.send(encode(Ready(facts)))
        Worker(engine, socket).run()
    except (CheckpointError, ConfigError) as error:
        socket.send(encode(Broken(str(error), is_final=True)))
    except Exception as error:  # the worker's last word to every open request
        logger.exception("the worker failed")
        socket.send(encode(Broken(f"{type(error).__name__} in the worker", is_final=False)))
    socket.close()
    context.term()
    sys.exit(1)


def _tell_begun(pipe: int, request_ids: list[str]) -> None:
    """Say so before the forward, which may be this process's last: what was written to a pipe outlives its writer.

    A socket's message would still have to be sent by a thread of this process.
    """
    rest = memoryview("".join(f"{request_id}\n" for request_id in request_ids).encode())
    while rest:
        rest = rest[os.write(pipe, rest) :]


def load_engine(
    config: WorkerConfig, on_begin: Callable[[list[str]], object] = lambda request_ids: None
) -> tuple[Engine, ModelFacts]:
    """A model in its engine. CheckpointError or ConfigError if that cannot be."""
    started = time.monotonic()
    group = join(config)
    with loading_bar(sys.stderr, is_shown=config.replica_index == 0) as advance:
        model = load_part(config, group, advance)
    weights = model.embedding
    if config.compiles:
        compile_layers(model)
    recorder = cuda_recorder(model) if config.cuda_graphs else None
    limits = _with_undefined_ids(config, model.spec.vocab_size)
    engine = Engine(model, limits, on_begin=on_begin, recorder=recorder)
    facts = ModelFacts(
        architecture=model.spec.architecture,
        num_parameters=model.spec.num_parameters,
        dtype=str(weights.dtype).removeprefix("torch."),
        quantization=config.quantization,
        device=str(weights.device),
        eos_ids=model.spec.eos_ids,
        limits=engine.limits,
        load_seconds=time.monotonic() - started,
    )
    return engine, facts


def _with_undefined_ids(config: WorkerConfig, vocab_size: int) -> EngineConfig:
    """The engine's limits plus the ids that the tokenizer does not know, which must never be sampled."""
    defined = open_codec(Path(config.tokenizer)).known_ids
    undefined = tuple(token_id for token_id in range(vocab_size) if token_id not in defined)
    return dataclasses.replace(config.engine, undefined_ids=undefined)


def _die_with_parent() -> None:
    """Ask the kernel for SIGKILL once the API process is gone: it also ends a worker that is stopped or hangs."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _end_with_parent() -> NoReturn:
    """Block on stdin until the API process closes its end or dies."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(0)
