"""Folders of what many tests share and make but once, such as a model: they last as long as the process."""

from __future__ import annotations

import atexit
import os
import shutil
from functools import cache
from pathlib import Path
from tempfile import gettempdir, mkdtemp

PREFIX = "ferrum-tests-"


def folder(name: str) -> Path:
    """A new and empty one; it is gone when the process ends."""
    return Path(mkdtemp(prefix=f"{name}-", dir=_parent(os.getpid())))


@cache
def _parent(process: int) -> Path:
    """Of all folders of a process: what a child makes is not its parent's, nor the other way round."""
    for path in Path(gettempdir()).glob(f"{PREFIX}*"):
        owner = path.name.removeprefix(PREFIX).partition("-")[0]
        if owner.isdecimal() and not _runs(int(owner)):
            shutil.rmtree(path, ignore_errors=True)  # it was killed
    parent = Path(mkdtemp(prefix=f"{PREFIX}{process}-"))
    atexit.register(lambda: os.getpid() == process and shutil.rmtree(parent, ignore_errors=True))
    return parent


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except OSError as error:
        return isinstance(error, PermissionError)  # somebody else's
    return True
