"""Progress of a batch: a bar on the terminal, or whatever bar the caller brings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from ferrum.core.errors import RequestError


class ProgressBar(Protocol):
    """The part of tqdm's interface that a batch needs."""

    def update(self, n: int) -> Any:
        """Count `n` more prompts as done."""
        ...

    def close(self) -> Any:
        """The batch is over."""
        ...


BarFactory: TypeAlias = Callable[..., ProgressBar]
"""Called as tqdm is: `total` and `desc` by name."""


class NoBar:
    """Shows nothing."""

    def update(self, n: int) -> None:
        """See `ProgressBar`."""

    def close(self) -> None:
        """See `ProgressBar`."""


class RichBar:
    """A bar with count, elapsed and remaining time, on standard error."""

    def __init__(self, *, total: int, desc: str) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self._task = self._progress.add_task(desc, total=total)
        self._progress.start()

    def update(self, n: int) -> None:
        """See `ProgressBar`."""
        self._progress.advance(self._task, n)

    def close(self) -> None:
        """See `ProgressBar`."""
        self._progress.stop()


def progress_bar(use_tqdm: bool | BarFactory, total: int, desc: str) -> ProgressBar:
    """The bar that `use_tqdm` asks for: rich's, none, or the caller's own.

    Raises:
        RequestError: it is neither a bool nor callable.
    """
    if use_tqdm is True:
        return RichBar(total=total, desc=desc)
    if use_tqdm is False:
        return NoBar()
    if not callable(use_tqdm):
        raise RequestError(f"must be true, false or a callable, not {use_tqdm!r}", param="use_tqdm")
    return use_tqdm(total=total, desc=desc)
