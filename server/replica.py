"""One supervised worker process: started, listened to, and started again when it dies.

Each life has its own process and its own socket in a private folder, so no message of a dead worker can reach its
successor. What the messages mean is the owner's affair (`server.pool`).
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Protocol

import msgspec
import zmq
import zmq.asyncio

from server.messages import Broken, ModelFacts, Ready, ToServer, ToWorker, WorkerConfig, decode_to_server, encode
from server.messages import encode_config as encode_worker_config

logger = logging.getLogger(__name__)

ReplicaState = Literal["loading", "ready", "restarting", "failed"]

MAX_FAILED_STARTS: Final = 5  # in a row, without once becoming ready
FIRST_BACKOFF_SECONDS: Final = 0.25
MAX_BACKOFF_SECONDS: Final = 30.0
STABLE_SECONDS: Final = 60.0  # a worker that was ready for so long dies for a new reason
STOP_SECONDS: Final = 5.0  # until a worker that should end is killed
LAST_WORDS_MILLISECONDS: Final = 50  # silence after which a dead worker's socket is empty

_BOOT: Final = "import sys; sys.path.insert(0, sys.argv.pop(1)); from server.worker import main; main()"


class ReplicaOwner(Protocol):
    """Who hears of a replica's messages and deaths. Called on the event loop; must not block."""

    def on_ready(self, replica: Replica) -> None:
        """The model is loaded; `replica.facts` is set."""

    def on_message(self, replica: Replica, message: ToServer) -> None:
        """Any message but Ready and Broken."""

    def on_down(self, replica: Replica, reason: str) -> None:
        """The process is gone. `replica.state` is already restarting or failed."""


@dataclass(frozen=True, slots=True)
class _End:
    """How one life ended."""

    reason: str
    was_ready: bool
    ready_seconds: float
    is_final: bool


class Replica:
    """A worker process and its successors. Owns the process and the socket."""

    def __init__(self, config: WorkerConfig, folder: Path, owner: ReplicaOwner) -> None:
        """config.address is replaced for every life by a socket in `folder`."""
        self.index = config.replica_index
        self.state: ReplicaState = "loading"
        self.facts: ModelFacts | None = None
        self.failure = ""  # why the state is "failed"
        self._config = config
        self._folder = folder
        self._owner = owner
        self._num_lives = 0
        self._context = zmq.asyncio.Context()
        self._socket: zmq.asyncio.Socket | None = None
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        """Process id of the present life."""
        return self._process.pid if self._process is not None else None

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
                logger.error("worker %d ended: %s%s", self.index, end.reason, "; giving up" if is_over else "")
                self._owner.on_down(self, end.reason)
                if is_over:
                    return
                backoff = FIRST_BACKOFF_SECONDS if end.ready_seconds >= STABLE_SECONDS else backoff
                await asyncio.sleep(backoff)
                backoff = min(2 * backoff, MAX_BACKOFF_SECONDS)
        finally:
            await self._stop()
            self._context.destroy(linger=0)

    async def _live(self) -> _End:
        """One life, from spawn to death."""
        loop = asyncio.get_running_loop()
        self._num_lives += 1
        address = f"ipc://{self._folder}/{self.index}-{self._num_lives}"
        socket = self._context.socket(zmq.PAIR)
        socket.set_hwm(0)
        socket.bind(address)
        self._socket = socket
        process = await self._spawn(address)
        dead = asyncio.create_task(process.wait())
        ready_at: float | None = None
        end = _End("", was_ready=False, ready_seconds=0.0, is_final=False)
        try:
            while not end.reason:
                message = await self._next_message(socket, dead)
                match message:
                    case None:
                        end = dataclasses.replace(end, reason=_describe_exit(await dead))
                    case Broken(text, is_final):
                        end = dataclasses.replace(end, reason=text, is_final=is_final and ready_at is None)
                    case Ready(facts):
                        ready_at = loop.time()
                        self.facts, self.state = facts, "ready"
                        self._owner.on_ready(self)
                    case _:
                        self._owner.on_message(self, message)
        finally:
            dead.cancel()
            self._socket = None
            socket.close(linger=0)
            await self._stop()
        if ready_at is None:
            return end
        return dataclasses.replace(end, was_ready=True, ready_seconds=loop.time() - ready_at)

    async def _spawn(self, address: str) -> asyncio.subprocess.Process:
        config = msgspec.structs.replace(self._config, address=address)
        root = str(Path(__file__).resolve().parents[1])
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-c", _BOOT, root, encode_worker_config(config)),
            stdin=asyncio.subprocess.PIPE,
            start_new_session=True,  # a Ctrl-C in the terminal is for the API process, which drains first
        )
        return self._process

    async def _next_message(self, socket: zmq.asyncio.Socket, dead: asyncio.Task[int]) -> ToServer | None:
        """The next message, or None once the process is dead and its socket is empty."""
        if not dead.done():
            receive = asyncio.ensure_future(socket.poll())
            await asyncio.wait((receive, dead), return_when=asyncio.FIRST_COMPLETED)
            if not receive.done():
                receive.cancel()
        if dead.done() and not await socket.poll(LAST_WORDS_MILLISECONDS):
            return None
        return decode_to_server(await socket.recv())

    async def _stop(self) -> None:
        """End the process, gently and then not, and wait for it: no zombie stays."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), STOP_SECONDS)
        except TimeoutError:
            process.kill()
            await process.wait()


def _describe_exit(code: int) -> str:
    return f"killed by signal {-code}" if code < 0 else f"exited with status {code}"
