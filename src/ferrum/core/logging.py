"""Messages to users outside of results: log once per process, and JSON log lines for servers.

What is logged, and when, is decided by the callers.
"""

from __future__ import annotations

import json
import logging
import time
from functools import cache
from typing import Final

_LOG: Final = logging.getLogger(__name__)


@cache
def warn_once(message: str) -> None:
    """Log a warning, only the first time it occurs in this process."""
    _LOG.warning(message)


@cache
def info_once(message: str) -> None:
    """Log at INFO, only the first time it occurs in this process."""
    _LOG.info(message)


class JsonFormatter(logging.Formatter):
    """A formatter that writes one JSON object per line, with the record's `fields` among its keys."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the JSON line of a record."""
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


class TextFormatter(logging.Formatter):
    """A formatter for people: time, message, and the record's `fields` that are short."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        level = "" if record.levelno <= logging.INFO else f"{record.levelname.lower()}: "
        line = f"{time.strftime('%H:%M:%S', time.localtime(record.created))} {level}{record.getMessage()}"
        for name, value in getattr(record, "fields", {}).items():
            if isinstance(value, int | float | str) and value != "":
                line += f" {name}={value}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def log_objects(level: int) -> None:
    """Log to standard error as JSON lines, including Python's warnings."""
    _log_with(JsonFormatter(), level)


def log_text(level: int) -> None:
    """Log to standard error as text, including Python's warnings."""
    _log_with(TextFormatter(), level)


def _log_with(formatter: logging.Formatter, level: int) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    logging.basicConfig(handlers=[handler], level=level)
    logging.captureWarnings(capture=True)
