"""The command line, run in this process."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ferrum.cli.main import execute

Outcome = tuple[int, str, str]
"""Exit code, standard output, standard error."""


def command_line(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Runs `ferrum` with the arguments that it is given."""

    def run(*arguments: str) -> Outcome:
        code = execute(arguments)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run
