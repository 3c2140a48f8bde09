"""What a folder holds, for searches through folders of other programs: what cannot be read is passed over."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

DEPTH: Final = 3
"""Folders below the first that are searched: a limit for links to large trees."""


def is_file(path: Path) -> bool:
    """Whether a path is a file that can be reached."""
    with suppress(OSError, ValueError):
        return path.is_file()
    return False


def is_folder(path: Path) -> bool:
    """Whether a path is a folder that can be reached."""
    with suppress(OSError, ValueError):
        return path.is_dir()
    return False


def text_of(path: Path, limit: int = 1 << 20) -> str | None:
    """Return the text of a small file, or None if it cannot be read."""
    with suppress(OSError, ValueError):
        if path.is_file() and path.stat().st_size <= limit:
            return path.read_text("utf-8")
    return None


def entries_of(folder: Path) -> list[Path]:
    """Return the sorted entries of a folder that are not hidden; none if it cannot be read."""
    with suppress(OSError, ValueError):
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    return []


def files_below(folder: Path, depth: int = DEPTH) -> Iterator[Path]:
    """Yield the files in a folder and the folders in it. Links are followed; each folder is searched once."""
    for each in folders_below(folder, depth):
        yield from (path for path in entries_of(each) if is_file(path))


def folders_below(folder: Path, depth: int = DEPTH) -> Iterator[Path]:
    """Yield a folder and the folders in it, as `files_below` searches them."""
    yield from _folders(folder, depth, set())


def _folders(folder: Path, depth: int, seen: set[tuple[int, int]]) -> Iterator[Path]:
    with suppress(OSError, ValueError):
        state = folder.stat()
        if (state.st_dev, state.st_ino) in seen:
            return
        seen.add((state.st_dev, state.st_ino))
        yield folder
        for path in entries_of(folder) if depth else ():
            if is_folder(path):
                yield from _folders(path, depth - 1, seen)
