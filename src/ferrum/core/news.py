"""What users are told beside results: in the log, where they look without setting one up."""

from __future__ import annotations

import logging
from functools import cache
from typing import Final

_LOG: Final = logging.getLogger(__name__)


@cache
def tell_once(news: str) -> None:
    """Warn of something, the first time in a process."""
    _LOG.warning(news)
