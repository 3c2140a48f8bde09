"""What users are told beside results: in the log, where they look without setting one up.

The log of a server: one JSON object a line, whichever process and library has something to tell.
"""

from __future__ import annotations

import json
import logging
import time
from functools import cache
from typing import Final

_LOG: Final = logging.getLogger(__name__)


@cache
def tell_once(news: str) -> None:
    """Warn of something, the first time in a process."""
    _LOG.warning(news)


class JsonFormatter(logging.Formatter):
    """One JSON object a line. A record's `fields` are among its keys; prompts are nobody's fields."""

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record."""
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


def log_objects(level: int) -> None:
    """Send all logs of this process to standard error as such lines, and Python's warnings among them."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(handlers=[handler], level=level)
    logging.captureWarnings(capture=True)
