"""Pages on disk: what was written is read, what is damaged or foreign is not believed, and the room is bounded."""

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
from ferrum.runtime.kv_tiers.page_files import PageFiles
from ferrum.runtime.model_digest import model_digest

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


def test_a_page_is_read_as_it_was_written_by_any_process(tmp_path: Path) -> None:
    first, second = written(tmp_path / "made" / "here"), PageFiles(tmp_path / "made" / "here", 1 << 30)
    for files in (first, second):
        np.testing.assert_array_equal(files.get(name(1), SIZE), CONTENT)
        assert files.get(name(2), SIZE) is None


def test_pages_are_for_their_owner_alone_whoever_made_the_directory(tmp_path: Path) -> None:
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
    """Write and read pages of a directory that holds half of them; how many were found, and how many were damaged."""
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


def test_no_bit_of_a_file_can_be_flipped_unseen(tmp_path: Path) -> None:
    files = written(tmp_path)
    data = only_file(tmp_path).read_bytes()
    for position in range(len(data)):
        path = tmp_path / f"{name(1).hex()}.page"
        path.write_bytes(data[:position] + bytes([data[position] ^ 1 << position % 8]) + data[position + 1 :])
        assert files.get(name(1), SIZE) is None
        assert not path.exists(), "it is deleted, and written anew when the page is computed again"


@pytest.mark.parametrize("length", [0, 1, 57, 58, 100, SIZE + 57])
def test_a_file_that_is_cut_short_or_longer_is_not_read(tmp_path: Path, length: int) -> None:
    files = written(tmp_path)
    path = only_file(tmp_path)
    path.write_bytes(path.read_bytes()[:length])
    assert files.get(name(1), SIZE) is None
    files.put(name(1), CONTENT)
    path.write_bytes(path.read_bytes() + b"x")
    assert files.get(name(1), SIZE) is None


def test_a_page_under_another_name_or_of_another_size_is_not_read(tmp_path: Path) -> None:
    files = written(tmp_path)
    only_file(tmp_path).rename(tmp_path / f"{name(3).hex()}.page")
    assert files.get(name(3), SIZE) is None
    files.put(name(1), CONTENT)
    assert files.get(name(1), SIZE - 1) is None


def test_a_directory_in_the_place_of_a_page_harms_nobody(tmp_path: Path) -> None:
    files = PageFiles(tmp_path, 1000)
    (tmp_path / f"{name(1).hex()}.page").mkdir()
    assert files.get(name(1), SIZE) is None
    for index in range(1, 20):
        files.put(name(index), CONTENT)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_what_cannot_be_written_is_told_and_leaves_nothing(tmp_path: Path, monkeypatch, caplog, number: int) -> None:
    files = PageFiles(tmp_path, 1 << 30)

    def refuse(self: Path, target: Path) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "replace", refuse)
    files.put(name(1), CONTENT)
    files.put(name(2), CONTENT)
    assert caplog.text.count(os.strerror(number)) == 1, "once, and not for every page"
    assert files.get(name(1), SIZE) is None and not list(tmp_path.iterdir())


def test_what_was_used_longest_ago_makes_room(tmp_path: Path) -> None:
    files = PageFiles(tmp_path, 10 * (SIZE + 58))
    for index in range(10):
        files.put(name(index), CONTENT)
        os.utime(tmp_path / f"{name(index).hex()}.page", (index, index))
    assert files.get(name(0), SIZE) is not None
    files.put(name(10), CONTENT)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 10 * (SIZE + 58)
    there = [index for index in range(11) if files.get(name(index), SIZE) is not None]
    assert there == [0, *range(3, 11)]


def test_two_that_write_to_a_directory_keep_within_its_capacity_together(tmp_path: Path) -> None:
    both = [PageFiles(tmp_path, 64 * (SIZE + 58)) for _ in range(2)]
    for index in range(120):
        both[index % 2].put(name(index), CONTENT)
        assert len(list(tmp_path.iterdir())) <= 64 + 2 * 2


def test_a_directory_that_cannot_be_made_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError) as caught:
        PageFiles(tmp_path / "file" / "below", 1000)
    assert caught.value.param == "prefix_cache_dir"


def test_a_models_digest_is_of_its_content(tmp_path: Path) -> None:
    one, two, memory = tmp_path / "one", tmp_path / "two", tmp_path / "memory"
    for directory in (one, two, memory):
        directory.mkdir()
    for directory in (one, two):
        (directory / "config.json").write_text("{}")
        (directory / "model.safetensors").write_bytes(b"weights")
    assert model_digest(one, memory) == model_digest(two, memory) == model_digest(one, memory)
    (two / "model.safetensors").write_bytes(b"Weights")
    assert model_digest(one, memory) != model_digest(two, memory)
    before, weights = model_digest(one, memory), one / "model.safetensors"
    state = weights.stat()
    weights.write_bytes(b"WEIGHTS")
    while weights.stat().st_ctime_ns == state.st_ctime_ns:  # as fine as the system's clock of files
        os.utime(weights, ns=(state.st_atime_ns, state.st_mtime_ns))
    os.utime(weights, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert model_digest(one, memory) != before, "of the same size and the same time, it is another model"
    (memory / "models.json").write_text("damaged")
    assert model_digest(one, memory) == model_digest(one, tmp_path / "missing")


def test_a_model_is_told_by_its_files_only(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    before = model_digest(model, tmp_path)
    (model / "notes.json").mkdir()
    (model / "gone.json").symlink_to(model / "nowhere")
    assert model_digest(model, tmp_path) == before
    if sys.platform == "linux":  # where a name is any bytes
        (model / os.fsdecode(b"caf\xe9.json")).write_text("{}")
        assert model_digest(model, tmp_path) != before


def test_a_model_that_cannot_be_read_is_told_as_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text("{}")

    def broken(*_: object) -> None:
        raise OSError("the disk is broken")

    monkeypatch.setattr("hashlib.file_digest", broken)
    with pytest.raises(CheckpointError, match=r"config\.json: cannot be read: the disk is broken"):
        model_digest(tmp_path, tmp_path / "missing")
