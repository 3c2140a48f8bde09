"""Page files: written pages are read back, damaged and foreign ones are refused, and the total size is limited."""

from __future__ import annotations

import errno
import logging
import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from random import Random

import numpy as np
import pytest

from ferrum.core.errors import CheckpointError, ConfigError
from ferrum.runtime.kv_tiers.page_tier import PageFiles
from ferrum.sources.model_source import DirectoryModel

SIZE = 200
CONTENT = np.arange(SIZE, dtype=np.uint8)


def name(index: int) -> bytes:
    return index.to_bytes(32, "little")


def written(directory: Path) -> PageFiles:
    files = PageFiles(directory, 1 << 30)
    files.put(name(1), CONTENT)
    return files


def only_file(directory: Path) -> Path:
    (path,) = directory.iterdir()
    return path


def test_any_process_reads_a_written_page(tmp_path: Path) -> None:
    first, second = written(tmp_path / "made" / "here"), PageFiles(tmp_path / "made" / "here", 1 << 30)
    for files in (first, second):
        np.testing.assert_array_equal(files.get(name(1), SIZE), CONTENT)
        assert files.get(name(2), SIZE) is None


def test_pages_are_readable_by_their_owner_alone(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    written(tmp_path)
    assert only_file(tmp_path).stat().st_mode & 0o777 == 0o600


def test_engines_of_one_process_may_write_the_same_page_at_once(tmp_path: Path, monkeypatch, caplog) -> None:
    first, second = PageFiles(tmp_path, 1 << 30), PageFiles(tmp_path, 1 << 30)
    replace = Path.replace

    def meanwhile(self: Path, target: Path) -> Path:
        monkeypatch.setattr(Path, "replace", replace)
        second.put(name(1), CONTENT)
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", meanwhile)
    first.put(name(1), CONTENT)
    np.testing.assert_array_equal(second.get(name(1), SIZE), CONTENT)
    assert only_file(tmp_path).suffix == ".page" and not caplog.records


def played(directory: Path, seed: int) -> tuple[int, int]:
    """Write and read pages of a directory that holds half of them; return how many were found and damaged."""
    told: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = told.append  # type: ignore[method-assign]
    logging.getLogger("ferrum").addHandler(handler)
    files, pick, found = PageFiles(directory, 20 * (SIZE + 58)), Random(seed), 0
    for _ in range(200):
        index = pick.randrange(40)
        content = np.full(SIZE, index, np.uint8)
        if pick.random() < 0.5:
            files.put(name(index), content)
        elif (read := files.get(name(index), SIZE)) is not None:
            np.testing.assert_array_equal(read, content)
            found += 1
    return found, sum("damaged" in record.getMessage() for record in told)


def test_processes_may_write_read_and_clear_one_directory_at_once(tmp_path: Path) -> None:
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as others:
        for found, damaged in others.map(played, [tmp_path] * 2, range(2)):
            assert found > 0 and damaged == 0
    assert {path.suffix for path in tmp_path.iterdir()} == {".page"}


def test_every_flipped_bit_is_detected(tmp_path: Path) -> None:
    files = written(tmp_path)
    data = only_file(tmp_path).read_bytes()
    for position in range(len(data)):
        path = tmp_path / f"{name(1).hex()}.page"
        path.write_bytes(data[:position] + bytes([data[position] ^ 1 << position % 8]) + data[position + 1 :])
        assert files.get(name(1), SIZE) is None
        assert not path.exists(), "it is deleted, and written again once the page is recomputed"


@pytest.mark.parametrize("length", [0, 1, 57, 58, 100, SIZE + 57])
def test_a_file_of_the_wrong_length_is_not_read(tmp_path: Path, length: int) -> None:
    files = written(tmp_path)
    path = only_file(tmp_path)
    path.write_bytes(path.read_bytes()[:length])
    assert files.get(name(1), SIZE) is None
    files.put(name(1), CONTENT)
    path.write_bytes(path.read_bytes() + b"x")
    assert files.get(name(1), SIZE) is None


def test_a_page_of_another_name_or_size_is_not_read(tmp_path: Path) -> None:
    files = written(tmp_path)
    only_file(tmp_path).rename(tmp_path / f"{name(3).hex()}.page")
    assert files.get(name(3), SIZE) is None
    files.put(name(1), CONTENT)
    assert files.get(name(1), SIZE - 1) is None


def test_a_directory_in_the_place_of_a_page_is_harmless(tmp_path: Path) -> None:
    files = PageFiles(tmp_path, 1000)
    (tmp_path / f"{name(1).hex()}.page").mkdir()
    assert files.get(name(1), SIZE) is None
    for index in range(1, 20):
        files.put(name(index), CONTENT)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_failed_writes_are_logged_once_and_leave_no_file(tmp_path: Path, monkeypatch, caplog, number: int) -> None:
    files = PageFiles(tmp_path, 1 << 30)

    def refuse(self: Path, target: Path) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "replace", refuse)
    files.put(name(1), CONTENT)
    files.put(name(2), CONTENT)
    assert caplog.text.count(os.strerror(number)) == 1, "logged once, not for every page"
    assert files.get(name(1), SIZE) is None and not list(tmp_path.iterdir())


def test_the_least_recently_used_page_is_deleted_first(tmp_path: Path) -> None:
    files = PageFiles(tmp_path, 10 * (SIZE + 58))
    for index in range(10):
        files.put(name(index), CONTENT)
        os.utime(tmp_path / f"{name(index).hex()}.page", (index, index))
    assert files.get(name(0), SIZE) is not None
    files.put(name(10), CONTENT)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 10 * (SIZE + 58)
    there = [index for index in range(11) if files.get(name(index), SIZE) is not None]
    assert there == [0, *range(3, 11)]


def test_two_writers_keep_within_the_capacity_together(tmp_path: Path) -> None:
    both = [PageFiles(tmp_path, 64 * (SIZE + 58)) for _ in range(2)]
    for index in range(120):
        both[index % 2].put(name(index), CONTENT)
        assert len(list(tmp_path.iterdir())) <= 64 + 2 * 2


def test_a_directory_that_cannot_be_created_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError) as caught:
        PageFiles(tmp_path / "file" / "below", 1000)
    assert caught.value.param == "prefix_cache_dir"


def test_a_models_digest_depends_on_its_content(tmp_path: Path) -> None:
    one, two, memory = tmp_path / "one", tmp_path / "two", tmp_path / "memory"
    for directory in (one, two, memory):
        directory.mkdir()
    for directory in (one, two):
        (directory / "config.json").write_text("{}")
        (directory / "model.safetensors").write_bytes(b"weights")
    assert (
        DirectoryModel(one).digest(memory) == DirectoryModel(two).digest(memory) == DirectoryModel(one).digest(memory)
    )
    (two / "model.safetensors").write_bytes(b"Weights")
    assert DirectoryModel(one).digest(memory) != DirectoryModel(two).digest(memory)
    before, weights = DirectoryModel(one).digest(memory), one / "model.safetensors"
    state = weights.stat()
    weights.write_bytes(b"WEIGHTS")
    while weights.stat().st_ctime_ns == state.st_ctime_ns:  # longer than the resolution of file times
        os.utime(weights, ns=(state.st_atime_ns, state.st_mtime_ns))
    os.utime(weights, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert DirectoryModel(one).digest(memory) != before, "same size and time, other content: another model"
    (memory / "models.json").write_text("damaged")
    assert DirectoryModel(one).digest(memory) == DirectoryModel(one).digest(tmp_path / "missing")


def test_a_models_digest_ignores_other_files(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    before = DirectoryModel(model).digest(tmp_path)
    (model / "notes.json").mkdir()
    (model / "gone.json").symlink_to(model / "nowhere")
    assert DirectoryModel(model).digest(tmp_path) == before
    if sys.platform == "linux":  # if file names may be any bytes
        (model / os.fsdecode(b"caf\xe9.json")).write_text("{}")
        assert DirectoryModel(model).digest(tmp_path) != before


def test_an_unreadable_model_has_no_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text("{}")

    def broken(*_: object) -> None:
        raise OSError("the disk is broken")

    monkeypatch.setattr("hashlib.file_digest", broken)
    with pytest.raises(CheckpointError, match=r"config\.json: cannot be read: the disk is broken"):
        DirectoryModel(tmp_path).digest(tmp_path / "missing")
