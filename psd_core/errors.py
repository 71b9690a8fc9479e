"""Errors that a caller can cause. Faults of our own are assertions.

PsdError
├── ConfigError          a setting is out of range or two settings do not fit each other
├── RequestError         a request cannot be served; names the field, the limit and the given value
│   └── ContextError     prompt plus canvas does not fit the context
├── CheckpointError      a checkpoint folder cannot be loaded; names the file, key or tensor
└── OutOfMemoryError     a forward did not fit the memory; the engine tries a smaller one
"""

from __future__ import annotations

from typing import Final

REASON_CHARS: Final = 300


def one_line(error: Exception) -> str:
    """What a library said, on one line and cut to a readable length."""
    return " ".join(str(error).split())[:REASON_CHARS]


class PsdError(Exception):
    """Base of every error raised on purpose."""


class ConfigError(PsdError):
    """A setting is out of range, or two settings do not fit each other. `param` names the setting."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param
        self.message = message


class RequestError(PsdError):
    """A request cannot be served. `param` is the field at fault, `code` a stable label for clients."""

    code = "invalid_value"

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param
        self.message = message


class ContextError(RequestError):
    """Prompt plus canvas does not fit the context of the model."""

    code = "context_length_exceeded"


class CheckpointError(PsdError):
    """A checkpoint folder is missing, incomplete or of an unknown architecture."""


class OutOfMemoryError(PsdError):
    """A forward did not fit the device's memory. No sequence was changed: a smaller plan may run instead."""
