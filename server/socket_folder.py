"""The private folder with the sockets to the workers. A lock tells whether its owner lives: the kernel drops it with
the process, however that ended, so that the next server can remove what a killed one left behind.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from pathlib import Path
from typing import Final

PREFIX: Final = "psd-"
LOCK_NAME: Final = "lock"


class SocketFolder:
    """A new folder that only this user may enter. Owner of its lock."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
        draft = self.path / f"{LOCK_NAME}.new"
        self._lock = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        draft.rename(self.path / LOCK_NAME)  # nobody ever sees the lock unlocked

    def remove(self) -> None:
        """Delete the folder and everything in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def remove_stale_folders() -> None:
    """Delete this user's socket folders whose server is gone. Whatever looks unlike one of ours is left alone."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        try:
            _remove_if_stale(folder)
        except OSError:  # not ours, or its owner was quicker
            continue


def _remove_if_stale(folder: Path) -> None:
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) != 0o700:
        return
    lock = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder)
    finally:
        os.close(lock)
