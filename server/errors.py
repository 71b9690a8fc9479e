"""Errors on the wire: OpenAI's envelope for every status, all four keys always there.

ApiError carries everything a client sees. Whatever else is raised is our fault and becomes a 500 that says nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from psd_core.errors import ConfigError, RequestError
from server.tuning import RETRY_AFTER_SECONDS

MAX_MESSAGE_CHARS: Final = 600  # a message that repeats the given value must not repeat a megabyte

Envelope = dict[str, dict[str, str | None]]

_TYPES: Final[Mapping[int, str]] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    503: "unavailable_error",
}


class ApiError(Exception):
    """An answer that is an error. `code` is a stable label: clients branch on it and a metric counts it."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.param = param
        self.headers: Mapping[str, str] = headers or {}

    @property
    def envelope(self) -> Envelope:
        """The JSON body, and the payload of an error inside a stream."""
        default = "invalid_request_error" if self.status < 500 else "server_error"
        error_type = _TYPES.get(self.status, default)
        return {"error": {"message": self.message, "type": error_type, "param": self.param, "code": self.code}}


def invalid(param: str | None, message: str, code: str = "invalid_value") -> ApiError:
    """400: the request itself is at fault."""
    return ApiError(400, code, message, param)


def unsupported(param: str, message: str) -> ApiError:
    """400: a known field with a value that this server does not implement."""
    return ApiError(400, "unsupported_parameter", message, param)


def unavailable(code: str, message: str) -> ApiError:
    """503 with advice to come back: loading, restarting, draining."""
    return ApiError(503, code, message, headers={"Retry-After": str(RETRY_AFTER_SECONDS)})


def overloaded(message: str) -> ApiError:
    """429 with advice to come back: the queue is full."""
    return ApiError(429, "queue_full", message, headers={"Retry-After": str(RETRY_AFTER_SECONDS)})


def too_slow(message: str) -> ApiError:
    """408: the client keeps us waiting; the connection ends with the answer."""
    return ApiError(408, "read_timeout", message, headers={"Connection": "close"})


def internal() -> ApiError:
    """500: a fault of our own. The log has the details, the client does not."""
    return ApiError(500, "internal_error", "the server made a mistake; its log has the details")


def from_core(error: RequestError | ConfigError) -> ApiError:
    """400 for what the engine's own checks refuse. A decoder setting is named as it stands in `psd`."""
    if isinstance(error, ConfigError):
        return invalid(f"psd.{error.param}", error.message[:MAX_MESSAGE_CHARS])
    return ApiError(400, error.code, error.message[:MAX_MESSAGE_CHARS], error.param)
