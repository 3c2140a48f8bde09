"""The directory of records: a file for each request, written behind, and never more bytes than allowed.

A thread appends what is due, a few times a second: whoever dies loses no more than that, and every line that is there
is whole but perhaps the last one. The files are for their owner alone: prompts are in them.
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

from ferrum.core.errors import ConfigError, RecordNotFound, RequestError
from ferrum.engine.records.record import SEAL

Line: TypeAlias = Callable[[], Mapping[str, Any]]
"""Makes the values of a line, on the writing thread."""

PAUSE_SECONDS: Final = 0.1
"""How long lines gather before they are written, unless somebody waits for them."""

MAX_DUE: Final = 1 << 17
"""Lines that wait to be written at most; a record whose lines find no place is given up."""

CLOSE_SECONDS: Final = 10.0
"""How long `close` goes on writing what is due."""

SUFFIX: Final = ".jsonl"
_LONGEST: Final = 120
_KEPT: Final = 0.9
"""What is left of the capacity when records have to go: not each new one is to look through the directory."""

_LOG: Final = logging.getLogger(__name__)


def file_name(tenant: str, id: str) -> str:
    """What the record of a tenant's request is called: nobody's request is in the way of another tenant's."""
    return "@".join(_name_part(part) for part in (tenant, id) if part) + SUFFIX


def _name_part(part: str) -> str:
    """A tenant or an id as it stands in a name; a long one as its digest, each for itself: ids are looked for alone."""
    name = quote(part, safe="", errors="backslashreplace")
    return hashlib.sha256(name.encode()).hexdigest() if len(name) > _LONGEST else name


def find_record(directory: Path, id: str) -> Path:
    """The file of a request of whatever tenant.

    Raises:
        RecordNotFound: there is none.
        RequestError: several tenants have one of that id, or it is that of a body with several prompts.
    """
    found = _files_of(directory, id)
    if not found and _files_of(directory, f"{id}/0"):
        raise RequestError(f"{id!r} had several prompts, each with a record: name one, as in {f'{id}/0'!r}", param="id")
    if not found:
        raise RecordNotFound(f"no request {id!r} is recorded in {str(directory)!r}", param="id")
    if len(found) > 1:
        names = ", ".join(sorted(map(str, found)))
        raise RequestError(f"several keys have a request {id!r}; name one of the files {names}", param="id")
    return found[0]


def _files_of(directory: Path, id: str) -> list[Path]:
    name = file_name("", id)
    return [path for path in directory.glob(f"*{SUFFIX}") if path.name == name or path.name.endswith(f"@{name}")]


@dataclass(slots=True, eq=False)
class OpenRecord:
    """A record while it is written.

    Attributes:
        name: of its file.
        digest: of what is written.
        begun: whether the file is there.
        lost: it was given up.
    """

    name: str
    digest: Any = field(default_factory=hashlib.sha256)
    begun: bool = False
    lost: bool = False


class RecordFiles:
    """Writes the records of one engine. Safe to use from any thread.

    Args:
        directory: made where it is missing; others may use it, too.
        capacity: most bytes of all records; those that were written to longest ago go first.

    Raises:
        ConfigError: the directory cannot be used.
    """

    def __init__(self, directory: Path, capacity: int) -> None:
        self.directory = directory
        self._capacity = capacity
        self._due: list[tuple[OpenRecord, Line, bool]] = []
        self._crowded_out: list[OpenRecord] = []
        self._put = self._written = self._wanted = 0
        self._closing = self._failing = False
        # Held as itself where an interrupt may come: in the midst of a Condition one would leave it held for ever.
        self._lock = threading.RLock()
        self._news = threading.Condition(self._lock)
        try:
            directory.mkdir(0o700, parents=True, exist_ok=True)
            self._bytes = sum(size for _, size, _ in self._files())
        except OSError as error:
            raise ConfigError(f"{directory} cannot be used: {error}", param="record_dir") from None
        # Begun by the first line: an engine that could not be built after all leaves nothing running.
        self._thread = threading.Thread(target=self._run, name="ferrum-records", daemon=True)

    def put(self, record: OpenRecord, line: Line, *, last: bool = False) -> None:
        """Append a line to a record; the first one begins it, over what may be there, and the last one seals it."""
        with self._lock:
            if record.lost:
                return
            if self._thread.ident is None:
                try:
                    self._thread.start()
                except RuntimeError as error:  # none to be had now; the next line asks again
                    self._give_up(record, error)
                    return
            if len(self._due) >= MAX_DUE:
                record.lost = True
                self._crowded_out.append(record)
                return
            self._due.append((record, line, last))
            self._put += 1
            if len(self._due) == 1:
                self._news.notify_all()

    def flush(self) -> None:
        """Wait until all that was put is in the files, or given up."""
        with self._news:
            target = self._wanted = self._put
            self._news.notify_all()
            self._news.wait_for(lambda: self._written >= target or not self._thread.is_alive())

    def close(self) -> None:
        """Write what is due, for a while, and end. Idempotent."""
        with self._news:
            self._closing = True
            self._news.notify_all()
        if self._thread.ident is not None:
            self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        while True:
            with self._news:
                self._news.wait_for(lambda: self._due or self._closing)
                self._news.wait_for(lambda: self._closing or self._wanted > self._written, PAUSE_SECONDS)
                due, self._due = self._due, []
                crowded_out, self._crowded_out = self._crowded_out, []
            if not due:
                return
            for record in crowded_out:
                self._give_up(record, f"{MAX_DUE} lines wait to be written already")
            self._write(due)
            with self._news:
                self._written += len(due)
                self._news.notify_all()

    def _write(self, due: list[tuple[OpenRecord, Line, bool]]) -> None:
        """Append each record's lines at once."""
        lines: dict[OpenRecord, list[tuple[Line, bool]]] = {}
        for record, line, last in due:
            lines.setdefault(record, []).append((line, last))
        for record, its in lines.items():
            if record.lost:
                continue
            try:
                self._append(record, b"".join(_text(record, line, last=last) for line, last in its))
            except Exception as error:  # noqa: BLE001 - whatever keeps one record from being written, others go on
                self._give_up(record, error)
            else:
                self._failing = False
        if self._bytes > self._capacity:
            self._shrink()

    def _append(self, record: OpenRecord, text: bytes) -> None:
        # One that had to make room is not begun again in its middle.
        flags = os.O_APPEND if record.begun else os.O_CREAT | os.O_TRUNC
        descriptor = os.open(self.directory / record.name, os.O_WRONLY | flags, 0o600)
        record.begun = True
        with os.fdopen(descriptor, "wb") as file:
            file.write(text)
        self._bytes += len(text)

    def _give_up(self, record: OpenRecord, reason: object) -> None:
        """A record with a gap is none; it is told once that some are lost, until others are written again."""
        if not self._failing:
            _LOG.warning("requests cannot be recorded: %s", reason)
        self._failing = record.lost = True
        if record.begun:
            with suppress(OSError):
                (self.directory / record.name).unlink(missing_ok=True)

    def _files(self) -> list[tuple[float, int, Path]]:
        """Time of the last line, bytes and path of each record."""
        found = []
        for path in self.directory.glob(f"*{SUFFIX}"):
            with suppress(OSError):  # another process may have deleted it
                state = path.stat()
                found.append((state.st_mtime, state.st_size, path))
        return found

    def _shrink(self) -> None:
        """Delete what was written to longest ago."""
        files = sorted(self._files())
        self._bytes = sum(size for _, size, _ in files)
        for _, size, path in files:
            if self._bytes <= _KEPT * self._capacity:
                return
            with suppress(OSError):
                path.unlink()
                self._bytes -= size


def _text(record: OpenRecord, line: Line, *, last: bool) -> bytes:
    """A line as it is written. Raises ValueError for a number that JSON does not have."""
    text = json.dumps(line(), separators=(",", ":"), allow_nan=False).encode().removesuffix(b"}")
    record.digest.update(text)
    if last:
        seal: bytes = SEAL % record.digest.hexdigest().encode()
        return text + seal + b"}\n"
    record.digest.update(b"}\n")
    return text + b"}\n"
