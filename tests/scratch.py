"""Folders of what many tests share and make but once, such as a model: they last as long as the process."""

from __future__ import annotations

import atexit
import os
import shutil
from functools import cache
from pathlib import Path
from tempfile import mkdtemp


def folder(name: str) -> Path:
    """A new and empty one; it is gone when the process ends."""
    return Path(mkdtemp(prefix=f"{name}-", dir=_parent(os.getpid())))


@cache
def _parent(process: int) -> Path:
    """Of all folders of a process: what a child makes is not its parent's, nor the other way round."""
    parent = Path(mkdtemp(prefix="ferrum-tests-"))
    atexit.register(lambda: os.getpid() == process and shutil.rmtree(parent, ignore_errors=True))
    return parent
