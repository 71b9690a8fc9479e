"""All replicas together: which one serves a request, and what becomes of its requests when one dies.

A request goes to the ready replica with the fewest open requests, or to one that has the beginning of its prompt in the
cache and is not much busier (`server.affinity`). When a worker dies, a request that was in
no forward yet is moved to another one, or waits for the restart; every other one ends at once with an error, and
is suspected of having killed the worker.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from psd_core.admission import Limits
from psd_core.events import CanvasEvent, FinishedEvent, Occupancy, PromptEvent, StepOutput, TokensEvent
from psd_core.request import Request
from server.affinity import Affinity
from server.errors import ApiError, unavailable
from server.messages import Add, Cancel, ModelFacts, Refused, Stepped, ToServer, WorkerConfig
from server.metrics import Metrics
from server.quarantine import Quarantine, refused
from server.replica import Replica
from server.socket_folder import SocketFolder, remove_stale_folders

logger = logging.getLogger(__name__)

MAX_ATTEMPTS: Final = 4  # workers that may die with a request in their queue; by then it may be the reason


@dataclass(frozen=True, slots=True)
class BegunEvent:
    """The first forward of the request is about to run."""

    request_id: str


@dataclass(frozen=True, slots=True)
class FailedEvent:
    """Terminal: the request ends with an error, through no fault of its own."""

    request_id: str
    error: ApiError


Event = BegunEvent | PromptEvent | TokensEvent | CanvasEvent | FinishedEvent | FailedEvent
Sink = Callable[[Event], None]


@dataclass(slots=True)
class _Open:
    """A request that has not ended. `replica` is None while it waits for a restart."""

    request: Request
    sink: Sink
    replica: Replica | None
    attempts: int = 1
    is_begun: bool = False


class WorkerPool:
    """Owner of the replicas and of every open request."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._quarantine = Quarantine()
        self._on_ready: Callable[[ModelFacts], None] = lambda facts: None
        self._open: dict[str, _Open] = {}
        self._replicas: list[Replica] = []
        self._occupancies: dict[int, Occupancy] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._folder: SocketFolder | None = None
        self._config: WorkerConfig | None = None
        self._affinity: Affinity | None = None  # where replicas keep prefixes, and not all the same

    @property
    def num_open(self) -> int:
        """Requests that have not ended, running and waiting."""
        return len(self._open)

    @property
    def is_ready(self) -> bool:
        """Whether a request would be served now."""
        return any(replica.state == "ready" for replica in self._replicas)

    @property
    def states(self) -> list[str]:
        """The state of every replica, in order."""
        return [replica.state for replica in self._replicas]

    @property
    def failure(self) -> str | None:
        """Why no replica will ever be ready again, or None."""
        failed = [replica.failure for replica in self._replicas if replica.state == "failed"]
        return failed[0] if failed and len(failed) == len(self._replicas) else None

    def start(
        self, config: WorkerConfig, num_replicas: int, forward_seconds: float, on_ready: Callable[[ModelFacts], None]
    ) -> None:
        """Start the workers; returns before they are ready. `on_ready` is called whenever one has its model.

        forward_seconds: see Replica.
        """
        self._on_ready = on_ready
        self._config = config
        remove_stale_folders()
        self._folder = SocketFolder()
        for index in range(num_replicas):
            worker_config = msgspec.structs.replace(config, replica_index=index)
            replica = Replica(worker_config, self._folder.path, self, forward_seconds)
            self._replicas.append(replica)
            self._tasks.append(asyncio.create_task(replica.run(), name=f"replica-{index}"))

    async def close(self) -> None:
        """End every worker and wait for it."""
        self.fail_all(unavailable("shutting_down", "the server is shutting down"))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._folder is not None:
            self._folder.remove()

    async def wait_failed(self) -> str:
        """Return, with the reason, once no replica will ever be ready again; else never."""
        await asyncio.gather(*self._tasks)
        return self.failure or "no worker is left"

    def submit(self, requests: Sequence[Request], sink: Sink) -> None:
        """Hand requests to the workers; their events go to `sink`.

        ApiError 503 if no worker is ready, 422 for a request that workers did not survive; none is taken then.
        """
        if not self.is_ready:
            raise unavailable("worker_unavailable", "no worker is ready; try again soon")
        for request in requests:
            self._quarantine.check(request)
        for request in requests:
            self._dispatch(_Open(request, sink, replica=None))

    def cancel(self, request_ids: Iterable[str]) -> None:
        """End requests early: each still gets its FinishedEvent. Ended ones are ignored."""
        for request_id in request_ids:
            entry = self._open.get(request_id)
            if entry is None:
                continue
            if entry.replica is not None:
                entry.replica.send(Cancel(request_id))
            else:
                self._fail(entry, unavailable("worker_unavailable", "the request was cancelled"))

    def forget(self, request_ids: Iterable[str]) -> None:
        """End requests whose events nobody wants any more."""
        ids = [request_id for request_id in request_ids if request_id in self._open]
        for request_id in ids:
            self._open[request_id].sink = _ignore
        self.cancel(ids)

    def fail_all(self, error: ApiError) -> None:
        """End every open request with an error, at once."""
        entries = list(self._open.values())
        self.cancel([entry.request.request_id for entry in entries if entry.replica is not None])
        for entry in entries:
            self._fail(entry, error)

    def on_ready(self, replica: Replica) -> None:
        """See ReplicaOwner."""
        assert replica.facts is not None
        self._metrics.loaded(replica.facts)
        self._affinity = self._affinity or self._make_affinity(replica.facts.limits)
        for other in self._replicas:
            other.agree(replica.facts.dtype)
        self._on_ready(replica.facts)
        for entry in [entry for entry in self._open.values() if entry.replica is None]:
            self._dispatch(entry)

    def on_message(self, replica: Replica, message: ToServer) -> None:
        """See ReplicaOwner."""
        match message:
            case Stepped(output):
                self._take(replica, output)
            case Refused(request_id, param, code, text):
                for entry in self._entries([request_id]):
                    self._fail(entry, ApiError(400, code, text, param))
            case _:
                logger.error("unexpected message from worker %d", replica.index)

    def on_begun(self, replica: Replica, request_ids: Sequence[str]) -> None:
        """See ReplicaOwner."""
        for entry in self._entries(request_ids):
            entry.is_begun = True
            entry.sink(BegunEvent(entry.request.request_id))

    def on_down(self, replica: Replica, reason: str) -> None:
        """See ReplicaOwner."""
        self._occupancies.pop(replica.index, None)
        if self._affinity is not None:
            self._affinity.forget(replica.index)
        self._metrics.occupied(self._occupancies.values())
        if replica.state == "restarting":
            self._metrics.restarted()
        error = ApiError(500, "worker_died", f"the worker that computed this request died ({reason})")
        for entry in [entry for entry in self._open.values() if entry.replica is replica]:
            if entry.is_begun:
                self._quarantine.charge(entry.request)
            if entry.is_begun or self.failure is not None:
                self._fail(entry, error)
            elif entry.attempts >= MAX_ATTEMPTS:
                self._fail(entry, refused(entry.attempts))
            else:
                entry.attempts += 1
                self._dispatch(entry)
        if self.failure is not None:
            self.fail_all(error)

    def _dispatch(self, entry: _Open) -> None:
        """Give the request to the ready replica that suits it best, or let it wait for the next one."""
        entry.replica = self._choose(entry.request)
        self._open[entry.request.request_id] = entry
        if entry.replica is not None:
            entry.replica.send(Add(entry.request, time.monotonic()))

    def _make_affinity(self, limits: Limits) -> Affinity | None:
        assert self._config is not None
        engine = self._config.engine
        if limits.block_length is None or not engine.prefix_cache or len(self._replicas) < 2:
            return None
        return Affinity(limits.block_length, limits.max_cache_tokens, engine.max_num_seqs)

    def _choose(self, request: Request) -> Replica | None:
        ready = [replica for replica in self._replicas if replica.state == "ready"]
        if self._affinity is None or len(ready) < 2 or request.decoder.cache != "causal":
            return min(ready, key=self._load, default=None)
        loads = {replica.index: self._load(replica) for replica in ready}
        choice = self._affinity.choose(request.prompt_ids, loads, request.cache_salt)
        self._metrics.routed(choice.outcome)
        return self._replicas[choice.index]

    def _load(self, replica: Replica) -> int:
        return sum(entry.replica is replica for entry in self._open.values())

    def _take(self, replica: Replica, output: StepOutput) -> None:
        self._occupancies[replica.index] = output.occupancy
        self._metrics.occupied(self._occupancies.values())
        if output.report is not None:
            self._metrics.stepped(output.report)
        self._metrics.ran_out_of_memory(output.out_of_memory)
        events: list[PromptEvent | TokensEvent | CanvasEvent | FinishedEvent] = [
            *output.prompts,
            *output.tokens,
            *output.canvases,
            *output.finished,
        ]
        for event in events:
            for entry in self._entries([event.request_id]):
                if isinstance(event, FinishedEvent):
                    del self._open[event.request_id]
                    if self._affinity is not None and entry.is_begun and entry.request.decoder.cache == "causal":
                        self._affinity.keep(replica.index, entry.request.prompt_ids, entry.request.cache_salt)
                    if event.reason in ("stop", "length"):
                        self._quarantine.clear(entry.request)
                entry.sink(event)

    def _entries(self, request_ids: Iterable[str]) -> list[_Open]:
        """The open requests of these ids: what a worker says of one that was given up meanwhile is ignored."""
        return [self._open[request_id] for request_id in request_ids if request_id in self._open]

    def _fail(self, entry: _Open, error: ApiError) -> None:
        self._open.pop(entry.request.request_id, None)
        entry.sink(FailedEvent(entry.request.request_id, error))


def _ignore(event: Event) -> None:
    """Sink of a request that nobody listens to."""
