"""The directory of records: a file per request, written by a thread, within a capacity in bytes.

The thread appends several times a second, so a crash loses little and at most the last line is incomplete. Only the
owner can read the files, since they contain prompts.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import quote

from ferrum.client.records.image_store import SUFFIX as IMAGE_SUFFIX
from ferrum.client.records.record import SEAL
from ferrum.core.errors import ConfigError, RecordNotFound, RequestError

Line: TypeAlias = Callable[[], Mapping[str, Any]]
"""Returns the values of a line; called on the writing thread."""

PAUSE_SECONDS: Final = 0.1
"""Time between two writes, unless a `flush` waits."""

MAX_QUEUED: Final = 1 << 17
"""Limit of lines that wait to be written. A record with a line beyond it is dropped."""

CLOSE_SECONDS: Final = 10.0
"""Time that `close` spends on writing the waiting lines."""

SUFFIX: Final = ".jsonl"
_MAX_NAME_PART: Final = 120
_KEPT: Final = 0.9
"""Part of the capacity that eviction keeps, so that not every new record scans the directory."""

_LOG: Final = logging.getLogger(__name__)


def file_name(tenant: str, id: str) -> str:
    """Return the file name of a tenant's request; requests of different tenants never share a file."""
    return "@".join(_name_part(part) for part in (tenant, id) if part) + SUFFIX


def _name_part(part: str) -> str:
    """Return a tenant or id in a form for file names; a long one as its digest. Ids are also searched alone."""
    name = quote(part, safe="", errors="backslashreplace")
    return hashlib.sha256(name.encode()).hexdigest() if len(name) > _MAX_NAME_PART else name


def find_record(directory: Path, id: str) -> Path:
    """Return the file of a request, whichever tenant's it is.

    Raises:
        RecordNotFound: there is no record of that id.
        RequestError: several tenants have a record of that id, or it belongs to a body with several prompts.
    """
    found = _files_of(directory, id)
    if not found and _files_of(directory, f"{id}/0"):
        raise RequestError(
            f"{id!r} had several prompts with a record each: pick one, such as {f'{id}/0'!r}", param="id"
        )
    if not found:
        raise RecordNotFound(f"no record of request {id!r} in {str(directory)!r}", param="id")
    if len(found) > 1:
        names = ", ".join(sorted(map(str, found)))
        raise RequestError(f"several keys have a request {id!r}: pick one of the files {names}", param="id")
    return found[0]


def _files_of(directory: Path, id: str) -> list[Path]:
    name = file_name("", id)
    return [path for path in directory.glob(f"*{SUFFIX}") if path.name == name or path.name.endswith(f"@{name}")]


@dataclass(slots=True, eq=False)
class OpenRecord:
    """A record that is being written.

    Attributes:
        name: file name.
        digest: SHA-256 so far.
        begun: whether the file exists.
        lost: whether the record was dropped.
    """

    name: str
    digest: Any = field(default_factory=hashlib.sha256)
    begun: bool = False
    lost: bool = False


class RecordFiles:
    """Writer of one engine's records. Safe to use from any thread.

    Args:
        directory: created if missing; other engines may use it, too.
        capacity: maximum bytes of all records; the least recently written are deleted first.

    Raises:
        ConfigError: the directory cannot be used.
    """

    def __init__(self, directory: Path, capacity: int) -> None:
        self.directory = directory
        self._capacity = capacity
        self._queued: list[tuple[OpenRecord, Line, bool]] = []
        self._dropped: list[OpenRecord] = []
        self._put = self._written = self._wanted = 0
        self._closing = self._failing = False
        # `put` takes the lock directly: an interrupt inside a Condition would leave it locked forever.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        try:
            directory.mkdir(0o700, parents=True, exist_ok=True)
            self._bytes = sum(size for _, size, _ in self._files())
        except OSError as error:
            raise ConfigError(f"cannot use {directory}: {error}", param="record_dir") from None
        # Started by the first line, so that an engine that fails to build leaves no thread.
        self._thread = threading.Thread(target=self._run, name="ferrum-records", daemon=True)

    def put(self, record: OpenRecord, line: Line, *, last: bool = False) -> None:
        """Append a line to a record; the first one replaces an existing file, the last one seals it."""
        with self._lock:
            if record.lost:
                return
            if self._thread.ident is None:
                try:
                    self._thread.start()
                except RuntimeError as error:  # no more threads now; the next line tries again
                    self._drop(record, error)
                    return
            if len(self._queued) >= MAX_QUEUED:
                record.lost = True
                self._dropped.append(record)
                return
            self._queued.append((record, line, last))
            self._put += 1
            if len(self._queued) == 1:
                self._changed.notify_all()

    def keep(self, name: str, make: Callable[[], bytes]) -> None:
        """Write a file that records refer to unless it is there; then it counts as written now. For `Line`s only.

        Raises:
            OSError: it cannot be written.
        """
        path = self.directory / name
        if path.exists():
            os.utime(path)
            return
        data, part = make(), path.with_suffix(".part")
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(data)
        part.rename(path)
        self._bytes += len(data)

    def flush(self) -> None:
        """Wait until all lines so far are written or dropped."""
        with self._changed:
            target = self._wanted = self._put
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._written >= target or not self._thread.is_alive())

    def close(self) -> None:
        """Write the waiting lines, for `CLOSE_SECONDS` at most, and end. Idempotent."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queued or self._closing)
                self._changed.wait_for(lambda: self._closing or self._wanted > self._written, PAUSE_SECONDS)
                queued, self._queued = self._queued, []
                dropped, self._dropped = self._dropped, []
            if not queued:
                return
            for record in dropped:
                self._drop(record, f"{MAX_QUEUED} lines already wait to be written")
            self._write(queued)
            with self._changed:
                self._written += len(queued)
                self._changed.notify_all()

    def _write(self, queued: list[tuple[OpenRecord, Line, bool]]) -> None:
        """Append the lines, record by record."""
        lines: dict[OpenRecord, list[tuple[Line, bool]]] = {}
        for record, line, last in queued:
            lines.setdefault(record, []).append((line, last))
        for record, its in lines.items():
            if record.lost:
                continue
            try:
                self._append(record, b"".join(_text(record, line, last=last) for line, last in its))
            except Exception as error:  # noqa: BLE001 - the other records are still written
                self._drop(record, error)
            else:
                self._failing = False
        if self._bytes > self._capacity:
            self._shrink()

    def _append(self, record: OpenRecord, text: bytes) -> None:
        # A record that was evicted must not start again in its middle.
        flags = os.O_APPEND if record.begun else os.O_CREAT | os.O_TRUNC
        descriptor = os.open(self.directory / record.name, os.O_WRONLY | flags, 0o600)
        record.begun = True
        with os.fdopen(descriptor, "wb") as file:
            file.write(text)
        self._bytes += len(text)

    def _drop(self, record: OpenRecord, reason: object) -> None:
        """Drop a record, since a gap makes it useless. Logs once until a record is written again."""
        if not self._failing:
            _LOG.warning("requests cannot be recorded: %s", reason)
        self._failing = record.lost = True
        if record.begun:
            with suppress(OSError):
                (self.directory / record.name).unlink(missing_ok=True)

    def _files(self) -> list[tuple[float, int, Path]]:
        """Return modification time, size and path of each record and image."""
        found = []
        for path in (path for suffix in (SUFFIX, IMAGE_SUFFIX) for path in self.directory.glob(f"*{suffix}")):
            with suppress(OSError):  # another process may have deleted it
                state = path.stat()
                found.append((state.st_mtime, state.st_size, path))
        return found

    def _shrink(self) -> None:
        """Delete the least recently written records."""
        files = sorted(self._files())
        self._bytes = sum(size for _, size, _ in files)
        for _, size, path in files:
            if self._bytes <= _KEPT * self._capacity:
                return
            with suppress(OSError):
                path.unlink()
                self._bytes -= size


def _text(record: OpenRecord, line: Line, *, last: bool) -> bytes:
    """Return a line as written. Raises ValueError for a number that JSON cannot represent."""
    text = json.dumps(line(), separators=(",", ":"), allow_nan=False).encode().removesuffix(b"}")
    record.digest.update(text)
    if last:
        seal: bytes = SEAL % record.digest.hexdigest().encode()
        return text + seal + b"}\n"
    record.digest.update(b"}\n")
    return text + b"}\n"
