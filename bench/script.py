"""How scripts of this folder end: one line for a wrong argument or a missing package, not a traceback."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


def run_script(main: Callable[[], int | None]) -> None:
    """Run a script; exit with a line if it refuses an argument or finds no file."""
    from ferrum.core.errors import FerrumError  # environments of peers, which use `needs`, lack it

    try:
        sys.exit(main())
    except (FerrumError, FileNotFoundError) as error:
        sys.exit(f"{sys.argv[0]}: {error}")


@contextmanager
def needs(packages: str) -> Iterator[None]:
    """Exit with what to install if an import within this context fails.

    Args:
        packages: arguments of `pip install`.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        sys.exit(f"{sys.argv[0]}: {error.name} is missing: pip install {packages}")


def positive(text: str) -> int:
    """Return an argument that is an integer from 1 on."""
    number = int(text)  # argparse reports a ValueError
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {number}")
    return number
