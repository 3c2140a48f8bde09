"""Pages of keys and values on disk: written behind, checked when they are read, and never more bytes than allowed.

A file is called by what it holds, so that it can be in the way of nobody and belongs to whoever computes the same: the
name is that of the page (`cache.prefix`), which model, formats and numerics are part of. It is written aside and then
moved into place: whoever dies on the way leaves no half of a page. What a file says of itself is never believed: it
must have the name that it is called by, the expected size, and the checksum of its content.
"""

from __future__ import annotations

import logging
import os
import secrets
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Final

import numpy as np

from ferrum.core.errors import ConfigError
from ferrum.kernels.interface import Bytes

_LOG: Final = logging.getLogger(__name__)

_MAGIC: Final = b"ferrum page 1\n"
_SUFFIX: Final = ".page"
_NAME_BYTES: Final = 32
_HEADER: Final = len(_MAGIC) + _NAME_BYTES + 8 + 4
"""Magic, name, bytes of the content and its CRC-32, little-endian."""

_KEPT: Final = 0.9
"""What is left of the capacity when files have to go: not each new one is to look through the directory."""

_UNSEEN: Final = 1 / 32
"""What is written of the capacity between two looks at what others have."""


class PageFiles:
    """The files of a directory that any number of processes may share.

    Args:
        directory: made where it is missing.
        capacity: most bytes of all files; those that were used longest ago go first. Of several that write, each may
            add a 32nd of it before it sees what the others have.

    Raises:
        ConfigError: the directory is not there and cannot be made.
    """

    def __init__(self, directory: Path, capacity: int) -> None:
        self._directory = directory
        self._capacity = capacity
        self._failing = False
        # Others may write the same page at the same time, in this process too.
        self._aside = f".{os.getpid()}-{secrets.token_hex(4)}"
        try:
            # Keys and values tell a good deal of the prompts that they were computed from.
            directory.mkdir(0o700, parents=True, exist_ok=True)
            self._bytes = sum(size for _, size, _ in self._files())
            self._unseen = 0
        except OSError as error:
            raise ConfigError(f"{directory} cannot be used: {error}", param="prefix_cache_dir") from None

    def put(self, name: bytes, content: Bytes) -> None:
        """Write a page over what may be there: it was not found, or not believed. The first failure is told in the log.

        Args:
            name: 32 bytes.
            content: u8 [n].
        """
        path = self._path(name)
        aside = path.with_suffix(self._aside)
        head = _MAGIC + name + len(content).to_bytes(8, "little") + zlib.crc32(content.data).to_bytes(4, "little")
        try:
            # For their owner alone, as prompts can be told from them, whoever made the directory.
            descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(head)
                file.write(content.data)
            aside.replace(path)
        except OSError as error:
            if not self._failing:
                _LOG.warning("pages of the prefix cache cannot be written: %s", error)
            self._failing = True
            with suppress(OSError):
                aside.unlink(missing_ok=True)
            return
        self._failing = False
        # What was there is counted twice, until the directory is looked through.
        self._bytes += _HEADER + len(content)
        self._unseen += _HEADER + len(content)
        if self._bytes > self._capacity or self._unseen > _UNSEEN * self._capacity:
            self._shrink()

    def get(self, name: bytes, size: int) -> Bytes | None:
        """The page of that name, u8 [size]; None where there is none. One that is damaged is deleted."""
        path = self._path(name)
        try:
            data = np.fromfile(path, np.uint8)
        except OSError:
            return None
        content = data[_HEADER:]
        head = _MAGIC + name + size.to_bytes(8, "little") + zlib.crc32(content.data).to_bytes(4, "little")
        if len(content) != size or data[:_HEADER].tobytes() != head:
            _LOG.warning("%s is damaged or not what it is called; its page is computed again", path.name)
            with suppress(OSError):
                path.unlink(missing_ok=True)
            return None
        with suppress(OSError):
            os.utime(path)  # used just now
        return content

    def _path(self, name: bytes) -> Path:
        assert len(name) == _NAME_BYTES
        return self._directory / (name.hex() + _SUFFIX)

    def _files(self) -> list[tuple[float, int, str]]:
        """Time of last use, bytes and path of each page, those written aside too."""
        found = []
        with os.scandir(self._directory) as entries:
            for entry in entries:
                if len(Path(entry.name).stem) == 2 * _NAME_BYTES:
                    with suppress(OSError):  # another process may have deleted it
                        state = entry.stat()
                        found.append((state.st_mtime, state.st_size, entry.path))
        return found

    def _shrink(self) -> None:
        """Look through the directory; where there is too much, delete what was used longest ago."""
        try:
            files = sorted(self._files())
        except OSError:
            return
        self._bytes, self._unseen = sum(size for _, size, _ in files), 0
        if self._bytes <= self._capacity:
            return
        for _, size, path in files:
            if self._bytes <= _KEPT * self._capacity:
                return
            with suppress(OSError):
                os.unlink(path)  # noqa: PTH108 - a path as scandir tells it
                self._bytes -= size
