"""Folders of files that many tests share, such as models: they are made once and last as long as the process."""

from __future__ import annotations

import atexit
import os
import shutil
from functools import cache
from pathlib import Path
from tempfile import gettempdir, mkdtemp

PREFIX = "ferrum-tests-"


def folder(name: str) -> Path:
    """Return a new empty folder; it is deleted when the process ends."""
    return Path(mkdtemp(prefix=f"{name}-", dir=_parent(os.getpid())))


@cache
def _parent(process: int) -> Path:
    """Return the parent of all folders of this process; forked children have their own."""
    for path in Path(gettempdir()).glob(f"{PREFIX}*"):
        owner = path.name.removeprefix(PREFIX).partition("-")[0]
        if owner.isdecimal() and not _runs(int(owner)):
            shutil.rmtree(path, ignore_errors=True)  # the process was killed
    parent = Path(mkdtemp(prefix=f"{PREFIX}{process}-"))
    atexit.register(lambda: os.getpid() == process and shutil.rmtree(parent, ignore_errors=True))
    return parent


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except OSError as error:
        return isinstance(error, PermissionError)  # another user's
    return True
