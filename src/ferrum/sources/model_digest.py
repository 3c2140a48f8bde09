"""A digest of a model's files, so that a persistent prefix cache is never used with another model."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from ferrum.core.errors import CheckpointError

_MEMO: Final = "models.json"


def files_digest(files: Sequence[Path], memory: Path) -> str:
    """Return a digest of the names and contents of files, as hexadecimal.

    Reading a gigabyte takes about a second. So digests are remembered by the files' names, sizes, devices, inodes and
    times of change, as git does. A copy may share all of these but the last, which users cannot set.

    Args:
        files: all files that determine a model's output, sorted.
        memory: directory where digests are remembered.

    Raises:
        CheckpointError: a file cannot be read.
    """
    seen = hashlib.sha256(repr([_identity(path) for path in files]).encode()).hexdigest()
    memo = memory / _MEMO
    known: dict[str, str] = {}
    with suppress(OSError, ValueError):
        loaded = json.loads(memo.read_text("utf-8"))
        known = loaded if isinstance(loaded, dict) else {}
    if not isinstance(known.get(seen), str):
        known[seen] = _digest(files)
        temporary = memo.with_suffix(f".{os.getpid()}")
        with suppress(OSError):  # the next start reads the files again
            temporary.write_text(json.dumps(known), "utf-8")
            temporary.replace(memo)
    return known[seen]


def _digest(files: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for path in files:
        try:
            with path.open("rb") as file:
                digest.update(os.fsencode(path.name) + hashlib.file_digest(file, "sha256").digest())
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read: {error}") from error
    return digest.hexdigest()


def _identity(path: Path) -> tuple[str | int, ...]:
    state = path.stat()
    return path.name, state.st_size, state.st_dev, state.st_ino, state.st_mtime_ns, state.st_ctime_ns
