"""Exit codes of the `ferrum` command that signals cause."""

from __future__ import annotations

from typing import Final

INTERRUPTED: Final = 130
SIGNALLED: Final = 128
"""Exit code of a signal, minus its number: 129 for a closed terminal, 143 for SIGTERM."""
