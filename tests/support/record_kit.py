"""Helpers for records of a fake engine's requests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from engine_fakes import FakeRecipe, parts
from ferrum.client.model_client import Parts
from ferrum.client.records.record import Origin
from ferrum.client.records.record_files import RecordFiles
from ferrum.client.records.recorder import Recorder
from ferrum.engine.messages import EngineInfo

ORIGIN = Origin(
    model="fake",
    directory=None,
    digest="none",
    numerics_id="fake-1",
    weights="",
    kv_format="",
    page_size=16,
    kv_capacity=4096,
    program="0",
)


def recorded(given: Parts, directory: Path) -> Parts:
    """Return client parts with a recorder; the engine must report its steps (`FakeRecipe.recorded`)."""

    def recorder(info: EngineInfo) -> Recorder:
        return Recorder(files, lambda: replace(ORIGIN, kv_capacity=info.kv_capacity))

    files = RecordFiles(directory, 1 << 20)
    return replace(given, recorder=recorder)


def recorded_parts(directory: Path, recipe: FakeRecipe | None = None, *, process: bool = False) -> Parts:
    """Return client parts on a fake engine with recorded requests."""
    return recorded(parts(replace(recipe or FakeRecipe(), recorded=True), process=process), directory)


@contextmanager
def record_files(directory: Path, capacity: int = 1 << 20) -> Iterator[RecordFiles]:
    """Yield a writer of records."""
    files = RecordFiles(directory, capacity)
    try:
        yield files
    finally:
        files.close()
