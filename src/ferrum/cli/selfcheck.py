"""`ferrum selfcheck`: whether every instruction tier of this machine computes the same bits as the reference."""

from __future__ import annotations

from typing import Final

import typer

from ferrum.cli.tables import print_table

DIFFERENT: Final = 1
"""Exit code if a tier differs."""


def selfcheck() -> None:
    """Compare the kernels of each instruction tier with known answers; exit with 1 if one differs."""
    from ferrum.runtime.backend import machine_kernels
    from ferrum.runtime.self_check import self_check

    rows, same = [], True
    for kernels in machine_kernels():
        result = self_check(kernels)
        same &= not result.wrong
        outcome = f"differs: {', '.join(result.wrong)}" if result.wrong else "same bits"
        rows.append((kernels.description, str(result.checked), f"{1000 * result.seconds:.1f}", outcome))
    print_table([("KERNELS", "CHECKS", "MS", "RESULT"), *rows])
    if not same:
        raise typer.Exit(DIFFERENT)
