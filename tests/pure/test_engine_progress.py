"""The loading bar appears late, shows everything and is closed at the end."""

from __future__ import annotations

import pytest

from ferrum.engine.progress import PATIENCE, LoadingBar, loading_bar

MIB = 1 << 20


class Recorded:
    """A bar that records its calls."""

    def __init__(self) -> None:
        self.total, self.desc, self.count, self.closed, self.made = 0, "", 0, 0, 0

    def __call__(self, *, total: int, desc: str) -> Recorded:
        self.total, self.desc, self.made = total, desc, self.made + 1
        return self

    def update(self, n: int) -> None:
        self.count += n

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def now() -> list[float]:
    """A settable clock."""
    return [0.0]


def test_quick_loading_shows_nothing(now: list[float]) -> None:
    bar = Recorded()
    progress = LoadingBar("model", bar, lambda: now[0])
    progress(5 * MIB, 10 * MIB)
    now[0] = 2 * PATIENCE
    progress(10 * MIB, 10 * MIB)
    progress.close()
    assert bar.made == bar.closed == 0


def test_slow_loading_shows_all_bytes_and_ends(now: list[float]) -> None:
    bar = Recorded()
    progress = LoadingBar("model", bar, lambda: now[0])
    for done in range(0, 11 * MIB, MIB // 3):
        now[0] += PATIENCE / 3
        progress(min(done, 10 * MIB), 10 * MIB)
    progress(10 * MIB, 10 * MIB)
    progress.close()
    assert (bar.total, bar.count, bar.made, bar.closed) == (10, 10, 1, 1)
    assert "model" in bar.desc


def test_failed_loading_closes_the_bar(now: list[float]) -> None:
    bar = Recorded()
    progress = LoadingBar("model", bar, lambda: now[0])
    now[0] = PATIENCE
    progress(MIB, 10 * MIB)
    progress.close()
    assert bar.made == bar.closed == 1


@pytest.mark.parametrize("terminal", [True, False])
def test_only_a_terminal_gets_a_bar(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal, raising=False)
    with loading_bar("model") as progress:
        assert (progress is not None) == terminal
