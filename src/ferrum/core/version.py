"""The version of the installed program. Its distribution is `ferrum-llm`: `ferrum` is taken on the package index."""

from __future__ import annotations

from typing import Final

DISTRIBUTION: Final = "ferrum-llm"


def installed_version() -> str:
    """Return the version of the installed distribution."""
    from importlib.metadata import version  # 20 ms that most commands need not spend

    return version(DISTRIBUTION)
