"""Files that a command will write at its end: whether that can be done is found out before the work, not after it."""

from __future__ import annotations

import os
from pathlib import Path

from psd_core.errors import ConfigError


def check_output(path: Path) -> None:
    """ConfigError unless the file, which is --output or lies in it, can be written."""
    given = repr(str(path))
    if not path.name or path.is_dir() or not path.parent.is_dir():
        raise ConfigError("output", f"--output must be a file name in a folder that exists, got {given}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ConfigError("output", f"--output must be a file that can be written, got {given}")
