"""Logging: one format for both processes, on stderr, with control characters escaped.

No prompt or output text, and no key, is ever passed to a logger here.
"""

from __future__ import annotations

import logging
import logging.config
import re

_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029]")
_FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


def escape(text: str) -> str:
    """Control characters as \\xNN: what a client sends can neither forge a line nor drive a terminal."""
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


class EscapingFormatter(logging.Formatter):
    """Escapes the message; a traceback of our own code keeps its lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """One line, whatever the arguments held."""
        record.message = escape(record.message)
        return super().formatMessage(record)


def configure_logging(level: str) -> None:
    """Set up the root logger and uvicorn's; called once per process, by its entry point."""
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "formatters": {"plain": {"()": EscapingFormatter, "fmt": _FORMAT}},
            "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "plain"}},
            "root": {"handlers": ["stderr"], "level": level.upper()},
            "loggers": {
                "uvicorn": {"level": "WARNING"},
                "uvicorn.access": {"level": "WARNING"},
                "httpx": {"level": "WARNING"},
            },
        }
    )
