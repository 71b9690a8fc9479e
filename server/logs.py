"""Logging: one set-up for both processes, on stderr, as text or as one JSON object per line.

No prompt or output text, and no key, is ever passed to a logger here. What might hold something of a client's is
escaped, so that it can neither forge a line nor drive a terminal.
"""

from __future__ import annotations

import json
import logging
import logging.config
import re
import time
from contextvars import ContextVar
from typing import Final

LOG_FORMATS: Final = ("text", "json")

_CONTROL: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_BEARER: Final = re.compile(r"(?i)(bearer\s+)[!-~]+")
_FORMAT: Final = "%(asctime)s %(levelname)-7s %(name)s [%(request_id)s]: %(message)s"

request_id: Final[ContextVar[str]] = ContextVar("request_id", default="-")  # of the request a task works for


def escape(text: str) -> str:
    """Control characters as \\xNN: what a client sends can neither forge a line nor drive a terminal."""
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def redact(text: str) -> str:
    """Without the key of any Authorization header: a library might log one."""
    return _BEARER.sub(r"\1***", text)


class RequestIdFilter(logging.Filter):
    """Gives every line the id of the request it is about."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Never drops a line."""
        record.request_id = request_id.get()
        return True


class TextFormatter(logging.Formatter):
    """Escapes the message; a traceback of our own code keeps its lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """One line, whatever the arguments held."""
        record.message = escape(redact(record.message))
        return super().formatMessage(record)

    def formatException(self, ei: logging._SysExcInfoType) -> str:
        """Each line of it escaped."""
        return "\n".join(map(escape, redact(super().formatException(ei)).split("\n")))


class JsonFormatter(logging.Formatter):
    """One object per line. A record's `fields` become keys of their own; its `event` stands for the message."""

    def format(self, record: logging.LogRecord) -> str:
        """ASCII only: JSON escapes whatever could break a line."""
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        entry: dict[str, object] = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "request_id": getattr(record, "request_id", "-"),
            "message": redact(getattr(record, "event", None) or record.getMessage()),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            entry["exception"] = redact(self.formatException(record.exc_info))
        return json.dumps(entry, default=str)


def configure_logging(level: str, log_format: str) -> None:
    """Set up the root logger and the libraries'; called once per process, by its entry point."""
    formatters = {"text": {"()": TextFormatter, "fmt": _FORMAT}, "json": {"()": JsonFormatter}}
    handler = {"class": "logging.StreamHandler", "formatter": log_format, "filters": ["request_id"]}
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "filters": {"request_id": {"()": RequestIdFilter}},
            "formatters": formatters,
            "handlers": {"stderr": handler},
            "root": {"handlers": ["stderr"], "level": level.upper()},
            "loggers": {
                # Below these levels they log every request, and some of them what is in it.
                name: {"level": "WARNING"}
                for name in ("uvicorn", "uvicorn.access", "httpx", "httpcore", "sse_starlette", "asyncio", "urllib3")
            },
        }
    )
