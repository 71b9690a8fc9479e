"""How many connections may stand at once, and which one gives way when another one comes.

A connection on whose client the server waits (nothing was sent yet, half a header, half a body, kept alive) gives way,
the longest waiting first: a flood of such connections pushes itself out, and whoever really asks something gets in.
A connection whose request is being answered never gives way.
"""

from __future__ import annotations

import logging
import resource
from collections import OrderedDict
from typing import Final, Protocol

logger = logging.getLogger(__name__)

OTHER_FILES: Final = 256  # that this process opens beside connections: sockets and pipes of workers, libraries


class Connection(Protocol):
    """What the limit must be able to ask of a connection."""

    def give_way(self) -> None:
        """End at once."""


class ConnectionLimit:
    """Owner of the list of connections, in the order in which the server began to wait for their clients."""

    def __init__(self, max_connections: int) -> None:
        self._max_connections = max_connections
        self._open: set[Connection] = set()
        self._waiting: OrderedDict[Connection, None] = OrderedDict()

    @property
    def num_open(self) -> int:
        return len(self._open)

    def enter(self, connection: Connection) -> bool:
        """Whether there is room for it, or was made for it. It counts from now on, as one that is waited for."""
        while len(self._open) >= self._max_connections:
            if not self._waiting:
                return False
            oldest = next(iter(self._waiting))
            self.leave(oldest)
            oldest.give_way()
        self._open.add(connection)
        self._waiting[connection] = None
        return True

    def set_waiting(self, connection: Connection, *, is_waiting: bool) -> None:
        """Whether the server waits for its client now. One that was waited for already keeps its place."""
        if not is_waiting:
            self._waiting.pop(connection, None)
        elif connection in self._open:
            self._waiting.setdefault(connection)

    def leave(self, connection: Connection) -> None:
        """It is gone, or about to be. May be told twice."""
        self._open.discard(connection)
        self._waiting.pop(connection, None)


def allow_open_files(max_connections: int) -> int:
    """Let this process open as many files as the connections need. Returns how many connections that allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max_connections + OTHER_FILES
    if hard != resource.RLIM_INFINITY and wanted > hard:
        allowed = max(1, hard - OTHER_FILES)
        logger.warning(
            "--max-connections %d needs %d open files and the system allows %d (ulimit -H -n): at most %d connections",
            *(max_connections, wanted, hard, allowed),
        )
        wanted, max_connections = hard, min(max_connections, allowed)
    if soft != resource.RLIM_INFINITY and wanted > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return max_connections
