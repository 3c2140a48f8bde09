"""docs/threads.md has every thread, pool and lock that the sources make, and nothing else."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from source_tree import MODULES, NATIVE, REPOSITORY, nodes_in

LIBRARIES = ("threading", "concurrent.futures", "concurrent.futures.thread", "asyncio", "multiprocessing")
THREADS = {"Thread", "ThreadPoolExecutor", "ProcessPoolExecutor", "Timer", "Process"}
LOCKS = {"Lock", "RLock", "Condition", "Semaphore", "BoundedSemaphore", "Barrier"}
NATIVE_PARTS = re.compile(r"^\s*std::(?:vector<std::thread>|mutex|condition_variable) \w+", re.MULTILINE)


def made(text: str) -> Iterator[tuple[str, str]]:
    """Yield class and name (empty: none) of each thread, pool and lock that a module makes."""
    froms = [node for node in nodes_in(text) if isinstance(node, ast.ImportFrom) and node.module in LIBRARIES]
    names = {alias.asname or alias.name: alias.name for node in froms for alias in node.names}
    for node in nodes_in(text):
        if not isinstance(node, ast.Call):
            continue
        function = ast.unparse(node.func)
        library, _, last = function.rpartition(".")
        kind = last if library in LIBRARIES else names.get(function, "")
        if kind in THREADS | LOCKS:
            constants = [each.value for each in ast.walk(node) if isinstance(each, ast.Constant)]
            yield kind, next((each for each in constants if str(each).startswith("ferrum-")), "").rstrip("-")


def rows(heading: str) -> list[list[str]]:
    """Return the cells of the table under a heading of the page."""
    text = (REPOSITORY / "docs" / "threads.md").read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")][1:]


def quoted(cells: list[str]) -> set[str]:
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def modules_that_make(kinds: set[str]) -> set[str]:
    return {path.stem for path in MODULES for kind, _ in made(path.read_text()) if kind in kinds}


def test_every_thread_and_pool_is_in_the_table() -> None:
    table = rows("Threads and pools")
    names = {name for path in MODULES for kind, name in made(path.read_text()) if kind in THREADS and name}
    first = quoted([row[0] for row in table])
    listed = {each.removesuffix("-N") for each in first if each.startswith("ferrum-")}
    assert names == listed
    modules = quoted([row[1] for row in table]) - {path.name for path in NATIVE}
    assert modules_that_make(THREADS) == modules


def test_every_lock_is_in_the_table() -> None:
    modules = quoted([row[1] for row in rows("Locks")]) - {path.name for path in NATIVE}
    assert modules_that_make(LOCKS) == modules


def test_native_threads_and_locks_are_in_the_tables() -> None:
    makers = {path.name for path in NATIVE if path.suffix != ".txt" and NATIVE_PARTS.search(path.read_text())}
    cells = [row[1] for heading in ("Threads and pools", "Locks") for row in rows(heading)]
    assert makers == quoted(cells) & {path.name for path in NATIVE}


def test_planted_threads_and_locks_are_found(tmp_path: Path) -> None:
    text = """
import threading
from asyncio import Lock as Turn
from concurrent.futures import ThreadPoolExecutor
from elsewhere import Condition
threading.Thread(target=print, name="ferrum-one")
ThreadPoolExecutor(1, f"ferrum-many-{2}")
Turn(), threading.RLock(), Condition()
"""
    assert sorted(made(text)) == [
        ("Lock", ""), ("RLock", ""), ("Thread", "ferrum-one"), ("ThreadPoolExecutor", "ferrum-many")
    ]  # fmt: skip
    (tmp_path / "a.hpp").write_text("    std::mutex one;\n    const std::lock_guard<std::mutex> lock(one);\n")
    assert len(NATIVE_PARTS.findall((tmp_path / "a.hpp").read_text())) == 1
