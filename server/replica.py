"""One supervised worker: started, listened to, and started again when it dies.

Each life has its own processes and its own socket in a private folder, so no message of a dead worker can reach its
successor. What the messages mean is the owner's affair (`server.pool`).
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Protocol

import msgspec
import zmq
import zmq.asyncio

from server.messages import (
    Alive,
    Broken,
    ModelFacts,
    Ping,
    Ready,
    ToServer,
    ToWorker,
    WorkerConfig,
    decode_to_server,
    encode,
)
from server.processes import WorkerProcesses

logger = logging.getLogger(__name__)

ReplicaState = Literal["loading", "ready", "restarting", "failed"]

MAX_FAILED_STARTS: Final = 5  # in a row, without once becoming ready
FIRST_BACKOFF_SECONDS: Final = 0.25
MAX_BACKOFF_SECONDS: Final = 30.0
STABLE_SECONDS: Final = 60.0  # a worker that was ready for so long dies for a new reason
PING_SECONDS: Final = 1.0  # between an answer of a worker and the next question
GRACE_SECONDS: Final = 1.0  # for an answer that came while this process itself was held up
LAST_WORDS_MILLISECONDS: Final = 200  # silence after which a dead worker's socket is empty

PIPE_BYTES: Final = 65_536


class ReplicaOwner(Protocol):
    """Who hears of a replica's messages and deaths. Called on the event loop; must not block."""

    def on_ready(self, replica: Replica) -> None:
        """The model is loaded; `replica.facts` is set."""

    def on_message(self, replica: Replica, message: ToServer) -> None:
        """Any message but Ready, Alive and Broken."""

    def on_begun(self, replica: Replica, request_ids: Sequence[str]) -> None:
        """The first forward of these requests is about to run; of a dead worker, it may have been its last."""

    def on_down(self, replica: Replica, reason: str) -> None:
        """The process is gone or about to be. `replica.state` is already restarting or failed."""


@dataclass(frozen=True, slots=True)
class _End:
    """How one life ended."""

    reason: str
    was_ready: bool
    ready_seconds: float
    is_final: bool


class _Lines:
    """A pipe of lines from a worker; its end here never blocks. Kept by the system, whatever becomes of the writer."""

    def __init__(self) -> None:
        self.read_fd, self.write_fd = os.pipe()
        os.set_blocking(self.read_fd, False)
        self._rest = b""

    def read(self) -> list[str]:
        """The lines that are there by now."""
        data = b""
        with contextlib.suppress(BlockingIOError):
            while piece := os.read(self.read_fd, PIPE_BYTES):
                data += piece
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [line.decode() for line in lines]

    def close_write(self) -> None:
        """Close the writer's end, once it is the worker's alone."""
        os.close(self.write_fd)

    def close(self) -> None:
        """Close the reader's end."""
        os.close(self.read_fd)


class Replica:
    """A worker and its successors. Owns the processes and the socket."""

    def __init__(self, config: WorkerConfig, folder: Path, owner: ReplicaOwner, forward_seconds: float) -> None:
        """config.address is replaced for every life by a socket in `folder`.

        forward_seconds: a worker that gives no sign of life for so long is taken to hang, and replaced.
        """
        self.index = config.replica_index
        self.state: ReplicaState = "loading"
        self.facts: ModelFacts | None = None
        self.failure = ""  # why the state is "failed"
        self._config = config
        self._folder = folder
        self._owner = owner
        self._forward_seconds = forward_seconds
        self._is_heard = asyncio.Event()
        self._num_lives = 0
        self._context = zmq.asyncio.Context()
        self._socket: zmq.asyncio.Socket | None = None
        self._processes: WorkerProcesses | None = None

    @property
    def pid(self) -> int | None:
        """Process id of the present life."""
        return self._processes.pid if self._processes is not None else None

    def agree(self, dtype: str) -> None:
        """Have weights of this type from the next life on: a worker that measured otherwise would answer otherwise."""
        self._config = msgspec.structs.replace(self._config, dtype=dtype)

    def send(self, message: ToWorker) -> None:
        """Queue a message; it is lost if the worker dies first, and `on_down` then says so."""
        if self._socket is not None:
            # Without a high-water mark the send never waits, so the future is done at once.
            sent = asyncio.ensure_future(self._socket.send(encode(message), zmq.NOBLOCK))
            if sent.done() and sent.exception() is not None:
                logger.debug("worker %d is gone, a message is lost", self.index)

    async def run(self) -> None:
        """Live, die and live again, until cancelled or failed for good."""
        num_failed_starts = 0
        backoff = FIRST_BACKOFF_SECONDS
        try:
            while True:
                end = await self._live()
                num_failed_starts = 0 if end.was_ready else num_failed_starts + 1
                is_over = end.is_final or num_failed_starts >= MAX_FAILED_STARTS
                self.state = "failed" if is_over else "restarting"
                self.failure = end.reason if is_over else ""
                backoff = FIRST_BACKOFF_SECONDS if end.ready_seconds >= STABLE_SECONDS else backoff
                next_life = "giving up" if is_over else f"it is started again in {backoff:g} s"
                logger.error("worker %d ended: %s; %s", self.index, end.reason, next_life)
                self._owner.on_down(self, end.reason)
                await self._stop()
                if is_over:
                    return
                await asyncio.sleep(backoff)
                backoff = min(2 * backoff, MAX_BACKOFF_SECONDS)
        finally:
            await self._stop()
            self._context.destroy(linger=0)

    async def _live(self) -> _End:
        """One life, from spawn to death. Processes may still be there: the caller ends them."""
        loop = asyncio.get_running_loop()
        self._num_lives += 1
        address = f"ipc://{self._folder}/{self.index}-{self._num_lives}"
        socket = self._context.socket(zmq.PAIR)
        socket.set_hwm(0)
        socket.bind(address)
        self._socket = socket
        try:
            processes, begun = await self._spawn(address)
        except OSError as error:  # the system has no process, memory or file left, which may pass
            self._socket = None
            socket.close(linger=0)
            return _End(f"it could not be started: {error}", was_ready=False, ready_seconds=0.0, is_final=False)
        loop.add_reader(begun.read_fd, self._take_begun, begun)
        dead = asyncio.create_task(processes.ended())
        silent: asyncio.Task[None] | None = None  # done once a ready worker has been silent for too long
        ready_at: float | None = None
        end = _End("", was_ready=False, ready_seconds=0.0, is_final=False)
        try:
            while not end.reason:
                message = await self._next_message(socket, dead, silent)
                self._is_heard.set()
                match message:
                    case None if dead.done():
                        end = dataclasses.replace(end, reason=await processes.describe_end())
                    case None:
                        processes.kill()
                        limit = f"{self._forward_seconds:g} s (--forward-timeout)"
                        end = dataclasses.replace(end, reason=f"no sign of life for {limit}: it hangs")
                    case Broken(text, is_final):
                        reason = text if is_final else await processes.describe_end(text)
                        end = dataclasses.replace(end, reason=reason, is_final=is_final and ready_at is None)
                    case Ready(facts) if self._config.dtype not in ("auto", facts.dtype):
                        end = dataclasses.replace(end, reason=f"its weights are {facts.dtype}, other workers' are not")
                    case Ready(facts):
                        ready_at = loop.time()
                        self.facts, self.state = facts, "ready"
                        silent = asyncio.create_task(self._wait_for_silence())
                        self._owner.on_ready(self)
                    case Alive():
                        pass
                    case _:
                        self._owner.on_message(self, message)
        finally:
            for task in (dead, silent):
                if task is not None:
                    task.cancel()
            self._socket = None
            socket.close(linger=0)
            loop.remove_reader(begun.read_fd)
            self._take_begun(begun)
            begun.close()
        if ready_at is None:
            return end
        return dataclasses.replace(end, was_ready=True, ready_seconds=loop.time() - ready_at)

    def _take_begun(self, begun: _Lines) -> None:
        if request_ids := begun.read():
            self._owner.on_begun(self, request_ids)

    async def _spawn(self, address: str) -> tuple[WorkerProcesses, _Lines]:
        self._processes = processes = WorkerProcesses()
        meeting = self._folder / f"{self.index}-{self._num_lives}-ranks"
        begun = _Lines()
        try:
            await processes.start(msgspec.structs.replace(self._config, address=address), begun.write_fd, meeting)
        except BaseException:  # cancelled while starting, too: nobody else has the pipe yet
            begun.close()
            raise
        finally:
            begun.close_write()
        return processes, begun

    async def _wait_for_silence(self) -> None:
        """Ask for a sign of life again and again; return when none comes for longer than a forward may take."""
        while True:
            self._is_heard.clear()
            self.send(Ping())
            if not await self._hears(self._forward_seconds) and not await self._hears(GRACE_SECONDS):
                return
            await asyncio.sleep(PING_SECONDS)

    async def _hears(self, seconds: float) -> bool:
        try:
            await asyncio.wait_for(self._is_heard.wait(), seconds)
        except TimeoutError:
            return False
        return True

    async def _next_message(
        self, socket: zmq.asyncio.Socket, dead: asyncio.Task[None], silent: asyncio.Task[None] | None
    ) -> ToServer | None:
        """The next message, or None once a process is dead and the socket is empty, or it is silent for too long."""
        if not dead.done():
            receive = asyncio.ensure_future(socket.poll())
            ends = (dead,) if silent is None else (dead, silent)
            await asyncio.wait((receive, *ends), return_when=asyncio.FIRST_COMPLETED)
            if not receive.done():
                receive.cancel()
                if silent is not None and silent.done():
                    return None
        if dead.done() and not await socket.poll(LAST_WORDS_MILLISECONDS):
            return None
        return decode_to_server(await socket.recv())

    async def _stop(self) -> None:
        """End the processes and wait for them."""
        processes, self._processes = self._processes, None
        if processes is not None:
            await processes.stop()
