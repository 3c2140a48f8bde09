"""What all tests share."""

from __future__ import annotations

import gc
import multiprocessing
import os
import random
import secrets
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from ferrum.kernels.cpu import library

if TYPE_CHECKING:
    from command_kit import Outcome

# What passes once passes again, however slow the machine: only long searches draw other examples each time.
settings.register_profile("repeatable", derandomize=True, database=None, deadline=None)
settings.load_profile("repeatable")

pytest.register_assert_rewrite("contract_kit", "contract_verbs", "contract_llm", "scheduler_bench")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "contract(row): a row of the executor contract, which the test is about")
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if workers > 1:
        share_processors(workers)


def pytest_collection_finish() -> None:
    """Exempt modules and collected tests from garbage collections, which would take a second each to examine them."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def earlier_modules_are_not_examined_for_garbage() -> None:
    """Exempt what earlier test modules keep as well: the collections that tests ask for took a second each."""
    gc.collect()
    gc.freeze()


def share_processors(workers: int) -> None:
    """Give native kernels a worker's share of the processors, unless a test asks for a number of threads.

    A step has many barriers, each of which would wait for threads that the other workers keep from running.
    """
    quota = library.cpu_quota

    def share(membership: Path, root: Path) -> float | None:
        whole = quota(membership, root) or os.cpu_count() or 1
        return whole / workers

    library.cpu_quota = share


@pytest.fixture(autouse=True)
def unseeded_requests_draw_the_same_each_time(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The seeds that admission chooses depend on the test alone: what passes once meets no rare end token later."""
    monkeypatch.setattr(secrets, "randbits", random.Random(request.node.nodeid).getrandbits)


@pytest.fixture
def ferrum(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Return the command line, run in this process."""
    from command_kit import command_line  # imports much of the package

    return command_line(capsys)


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left_running() -> Iterator[None]:
    """Threads and processes that the tests have started have ended with them."""
    before = set(threading.enumerate())
    yield
    left = [thread for thread in threading.enumerate() if thread not in before and not thread.daemon]
    for each in (*left, *multiprocessing.active_children()):
        each.join(60)
        assert not each.is_alive(), each
