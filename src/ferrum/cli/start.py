"""Where the `ferrum` command begins: Ctrl-C ends it as usual already while its modules are imported."""

from __future__ import annotations

import sys
from typing import Final

INTERRUPTED: Final = 130


def main() -> None:
    """Import the command line, run it, and exit with its code."""
    try:
        from ferrum.cli.main import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
