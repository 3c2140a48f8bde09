"""Progress of a batch or of loading: a bar on the terminal, or whatever bar the caller brings."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NoReturn, Protocol, TypeAlias

from ferrum.core.errors import RequestError
from ferrum.core.values import shown


class ProgressBar(Protocol):
    """The part of tqdm's interface that is needed here."""

    def update(self, n: int) -> Any:
        """Count `n` more as done."""
        ...

    def close(self) -> Any:
        """It is over."""
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
        RequestError: it is neither a bool nor callable, or what it makes is no bar.
    """
    if use_tqdm is True:
        return RichBar(total=total, desc=desc)
    if use_tqdm is False:
        return NoBar()
    if not callable(use_tqdm):
        raise RequestError(f"must be true, false or a callable, not {shown(use_tqdm)}", param="use_tqdm")
    bar = use_tqdm(total=total, desc=desc)
    if not (callable(getattr(bar, "update", None)) and callable(getattr(bar, "close", None))):
        raise RequestError(f"must make a bar with `update` and `close`, not {shown(bar)}", param="use_tqdm")
    return bar


PATIENCE: Final = 0.5
"""Seconds that loading may take without a bar: most models are there before one could be read."""

SHOW_CURSOR: Final = b"\x1b[?25h\n"
"""What terminals know as DECTCEM, and a new line."""

_STDERR: Final = 2


class LoadingBar:
    """Bytes loaded, in MiB. The bar appears when loading turns out to take its time.

    Args:
        desc: what is loaded.
        bar: makes the bar.
        clock: tells seconds.
    """

    def __init__(self, desc: str, bar: BarFactory = RichBar, clock: Callable[[], float] = time.monotonic) -> None:
        self._desc, self._factory, self._clock = desc, bar, clock
        self._begun = clock()
        self._bar: ProgressBar | None = None
        self._shown = 0

    def __call__(self, done: int, total: int) -> None:
        """Tell of bytes done and bytes in all."""
        if self._bar is None:
            if done == total or self._clock() - self._begun < PATIENCE:
                return
            self._bar = self._factory(total=total >> 20, desc=f"{self._desc} (MiB)")
        self._bar.update((done >> 20) - self._shown)
        self._shown = done >> 20
        if done == total:
            self.close()

    def close(self) -> None:
        """Loading is over, or failed."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None


@contextmanager
def loading_bar(desc: str) -> Iterator[Callable[[int, int], None] | None]:
    """What `build_executor` tells its progress: a bar where standard error is a terminal, else None."""
    bar = LoadingBar(desc) if sys.stderr is not None and sys.stderr.isatty() else None
    try:
        yield bar
    finally:
        if bar is not None:
            bar.close()


def show_cursor() -> None:
    """Show the terminal's cursor again, on a new line, for a bar that did not come to it.

    It goes past `sys.stderr`, which is the bar's as long as there is one: rich takes such codes out of what is printed.
    """
    if os.isatty(_STDERR):
        os.write(_STDERR, SHOW_CURSOR)


def leave(status: int) -> NoReturn:
    """End the process at once, whatever its threads do; the cursor, which a bar hides, is shown again."""
    show_cursor()
    os._exit(status)
