"""How a command ends: its exit status, and one line that says why."""

from __future__ import annotations

import sys
from typing import Final

from server.terminal.canvas import harmless

FAILED: Final = 1
WRONG_USAGE: Final = 2
INTERRUPTED: Final = 130  # what a shell reports for Ctrl-C


def fail(command: str, error: Exception, status: int) -> int:
    """Say on standard error what went wrong; the status."""
    print(harmless(f"psd {command}: error: {error}"), file=sys.stderr)
    return status
