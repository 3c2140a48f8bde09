"""Progress bars of batches and of loading: on the terminal, or the caller's."""

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
    """The methods of tqdm that are used here."""

    def update(self, n: int) -> Any:
        """Count `n` more as done."""

    def close(self) -> Any:
        """Finish the bar."""


BarFactory: TypeAlias = Callable[..., ProgressBar]
"""Called like tqdm, with `total` and `desc` by name."""


class NoBar:
    """A bar that shows nothing."""

    def update(self, n: int) -> None:
        pass

    def close(self) -> None:
        pass


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
        self._progress.advance(self._task, n)

    def close(self) -> None:
        self._progress.stop()


def progress_bar(use_tqdm: bool | BarFactory, total: int, desc: str) -> ProgressBar:
    """Return the bar for `use_tqdm`: rich's for true, none for false, or the result of a callable.

    Raises:
        RequestError: it is neither a bool nor callable, or its result has no `update` and `close`.
    """
    if use_tqdm is True:
        return RichBar(total=total, desc=desc)
    if use_tqdm is False:
        return NoBar()
    if not callable(use_tqdm):
        raise RequestError(f"must be true, false or a callable, not {shown(use_tqdm)}", param="use_tqdm")
    bar = use_tqdm(total=total, desc=desc)
    if not (callable(getattr(bar, "update", None)) and callable(getattr(bar, "close", None))):
        raise RequestError(f"must return a bar with `update` and `close`, not {shown(bar)}", param="use_tqdm")
    return bar


PATIENCE: Final = 0.5
"""Seconds of loading before the bar appears; most models load faster."""

SHOW_CURSOR: Final = b"\x1b[?25h\n"
"""The terminal sequence DECTCEM, and a new line."""

_STDERR: Final = 2


class LoadingBar:
    """A bar of loaded bytes, in MiB, that appears after `PATIENCE`.

    Args:
        desc: name of what is loaded.
        bar: creates the bar.
        clock: monotonic seconds.
    """

    def __init__(self, desc: str, bar: BarFactory = RichBar, clock: Callable[[], float] = time.monotonic) -> None:
        self._desc, self._factory, self._clock = desc, bar, clock
        self._begun = clock()
        self._bar: ProgressBar | None = None
        self._shown = 0

    def __call__(self, done: int, total: int) -> None:
        """Report loaded bytes and total bytes."""
        if self._bar is None:
            if done == total or self._clock() - self._begun < PATIENCE:
                return
            self._bar = self._factory(total=total >> 20, desc=f"{self._desc} (MiB)")
        self._bar.update((done >> 20) - self._shown)
        self._shown = done >> 20
        if done == total:
            self.close()

    def close(self) -> None:
        """Finish the bar, also after a failure."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None


@contextmanager
def loading_bar(desc: str) -> Iterator[Callable[[int, int], None] | None]:
    """Yield a progress callback for `build_executor`; None if standard error is no terminal."""
    bar = LoadingBar(desc) if sys.stderr is not None and sys.stderr.isatty() else None
    try:
        yield bar
    finally:
        if bar is not None:
            bar.close()


def show_cursor() -> None:
    """Show the terminal's cursor again, on a new line, after a bar that was interrupted.

    It writes to the descriptor: while a bar exists, rich replaces `sys.stderr` and removes such codes.
    """
    if os.isatty(_STDERR):
        os.write(_STDERR, SHOW_CURSOR)


def leave(status: int) -> NoReturn:
    """End the process immediately, without waiting for threads; show the cursor, which a bar hides."""
    show_cursor()
    os._exit(status)
