"""Records on disk are read back bit for bit; damage, overflow and write failures affect nothing else."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from ferrum.client.records import record_files as module
from ferrum.client.records.explain import Passage, Work, passages
from ferrum.client.records.record import (
    ChoiceEnd,
    Record,
    RecordedShare,
    RequestEnd,
    header_line,
    read_record,
    share_line,
)
from ferrum.client.records.record_files import OpenRecord, RecordFiles, file_name, find_record
from ferrum.core.errors import ConfigError, RecordDamaged, RecordNotFound, RequestError
from ferrum.core.params import SamplingParams
from ferrum.core.types import Pooling, Request
from ferrum.engine.messages import ComputedStep, StepShare
from record_kit import ORIGIN, record_files

REQUEST = Request(
    request_id="it",
    prompt=(5, 6, 7),
    params=SamplingParams(n=2, temperature=0.3, stop=["x"], logit_bias={5: 0.1}, allowed_token_ids=[1, 5], seed=4),
    seed=-(2**63),
    stop_token_ids=frozenset({1, 96}),
    eos_token_ids=(96,),
    bad_words=((1, 2), (3,)),
    dry_sequence_breakers=((4,), (5, 6)),
    priority=3,
    tenant="a",
    salt="s",
    trace_id="t",
    pooling=Pooling.LAST,
    prediction=(8, 9),
)
SHARE = StepShare("it", 1, 3, 1, drafts=(4, 5), accepted=1, sampled=(4, 6), logprobs=(-0.1, -1e-45), preemptions=2)
END = RequestEnd(
    choices=(ChoiceEnd(tokens=0, finish_reason="error", error="StepError"), ChoiceEnd(tokens=1, finish_reason="stop")),
    cached_tokens=2,
    prompt_logprobs=(-0.30000000000000004, -5e-324),
    embedding=(1.0, -0.0),
)


def write(files: RecordFiles, name: str = "it.jsonl", shares: int = 1, *, ends: bool = True) -> Path:
    record = OpenRecord(name)
    files.put(record, lambda: header_line("it", 12.5, ORIGIN, REQUEST))
    for number in range(shares):
        files.put(record, lambda number=number: share_line(ComputedStep(number, 9, (SHARE,)), SHARE))  # type: ignore[misc]
    if ends:
        files.put(record, END.to_dict, last=True)
    files.flush()
    return files.directory / name


def test_a_directory_without_writes_has_no_thread(tmp_path: Path) -> None:
    """An engine that fails to build must not leave a thread."""
    before = threading.active_count()
    files = RecordFiles(tmp_path, 1 << 20)
    files.flush()
    assert threading.active_count() == before
    files.close()


def test_a_record_is_dropped_if_no_thread_can_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    files = RecordFiles(tmp_path, 1 << 20)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        assert not write(files).exists()
    assert read_record(write(files)).shares
    files.close()


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    with record_files(tmp_path / "new") as files:
        record = read_record(write(files))
    (share,) = record.shares
    assert (share.step, share.rows, share.share) == (0, 9, SHARE)
    assert record == Record(id="it", time=12.5, origin=ORIGIN, request=REQUEST, shares=(share,), end=END)
    assert record.sampled(0) == [] and record.sampled(1) == [(4, -0.1)]


def test_only_the_owner_can_read_records(tmp_path: Path) -> None:
    with record_files(tmp_path / "new") as files:
        path = write(files)
    assert path.stat().st_mode & 0o777 == 0o600 and path.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("torn", [1, 30])
def test_a_truncated_record_is_read_up_to_its_last_line(tmp_path: Path, torn: int) -> None:
    with record_files(tmp_path) as files:
        path = write(files, shares=3)
    path.write_bytes(path.read_bytes()[:-torn])
    record = read_record(path)
    assert record.end is None and len(record.shares) == 3 and record.request == REQUEST


def test_a_changed_byte_is_found(tmp_path: Path) -> None:
    with record_files(tmp_path) as files:
        path = write(files)
    data = path.read_bytes()
    for position in range(0, len(data) - 1, 7):  # without its last line end, a file is one whose writer was killed
        path.write_bytes(data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :])
        with pytest.raises(RecordDamaged):
            read_record(path)
    for other in (b"", b"\n", b"[]\n", b"{}\n", b'{"version":2}\n'):
        path.write_bytes(other)
        with pytest.raises(RecordDamaged):
            read_record(path)


def test_the_oldest_records_are_evicted(tmp_path: Path) -> None:
    with record_files(tmp_path) as files:
        size = write(files).stat().st_size
    with record_files(tmp_path / "full", capacity=5 * size) as files:
        for number in range(20):
            path = write(files, f"{number:02}.jsonl")
            os.utime(path, (number, number))
            assert sum(each.stat().st_size for each in files.directory.iterdir()) <= 5 * size
        left = sorted(each.name for each in files.directory.iterdir())
    assert left[-1] == "19.jsonl" and left == [f"{number:02}.jsonl" for number in range(20 - len(left), 20)]


def test_an_evicted_record_does_not_start_again_in_its_middle(tmp_path: Path) -> None:
    with record_files(tmp_path) as files:
        record = OpenRecord("it.jsonl")
        files.put(record, lambda: header_line("it", 0.0, ORIGIN, REQUEST))
        files.flush()
        (tmp_path / "it.jsonl").unlink()
        files.put(record, END.to_dict, last=True)
        files.flush()
    assert list(tmp_path.iterdir()) == []


def test_a_write_failure_is_logged_once_and_affects_no_other_record(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with record_files(tmp_path) as files:
        (tmp_path / "bad.jsonl").mkdir()
        for _ in range(2):
            record = OpenRecord("bad.jsonl")
            for _ in range(3):
                files.put(record, END.to_dict)
                files.flush()
        assert read_record(write(files)).end == END
    assert len(caplog.records) == 1


def test_a_full_disk_leaves_no_empty_records(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "it.jsonl").symlink_to("/dev/full")
    with record_files(tmp_path) as files:
        write(files)
    assert "No space left" in caplog.text and list(tmp_path.iterdir()) == []


def test_a_full_queue_drops_only_the_record_of_the_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "MAX_QUEUED", 4)
    stuck, go = threading.Event(), threading.Event()

    def wait() -> dict[str, int]:
        stuck.set()
        assert go.wait(60)
        return {}

    with record_files(tmp_path) as files:
        crowd = OpenRecord("crowd.jsonl")
        files.put(crowd, END.to_dict)
        files.flush()
        files.put(OpenRecord("slow.jsonl"), wait)
        assert stuck.wait(60)
        for _ in range(6):
            files.put(crowd, END.to_dict)
        go.set()
        files.flush()
        assert sorted(each.name for each in tmp_path.iterdir()) == ["slow.jsonl"]
        assert ["4 lines" in each.message for each in caplog.records] == [True]
        assert read_record(write(files)).end == END


def test_file_names_are_unique_per_tenant_and_id(tmp_path: Path) -> None:
    ids = ["a", "../a", "a/b", ".", "..", "x" * 5000, "é", "a@b", "%2F", "A"]
    names = {file_name(tenant, id) for tenant in ("", "t", "t@a", "t" * 150) for id in ids}
    assert len(names) == 4 * len(ids)
    for name in names:
        assert (tmp_path / name).parent == tmp_path and len(name) < 255
        (tmp_path / name).touch()


def test_a_request_is_found_by_its_id_unless_that_is_ambiguous(tmp_path: Path) -> None:
    long = "x" * 210
    for tenant, id in (("", "one"), ("t", "two"), ("t", "both"), ("u", "both"), ("t", long)):
        (tmp_path / file_name(tenant, id)).touch()
    assert find_record(tmp_path, long).name == file_name("t", long)
    assert find_record(tmp_path, "one").name == "one.jsonl" and find_record(tmp_path, "two").name == "t@two.jsonl"
    with pytest.raises(RequestError, match=r"both\.jsonl"):
        find_record(tmp_path, "both")
    with pytest.raises(RecordNotFound):
        find_record(tmp_path, "three")
    (tmp_path / file_name("t", "several/0")).touch()
    with pytest.raises(RequestError, match="several/0") as caught:
        find_record(tmp_path, "several")
    assert caught.value.param == "id" and find_record(tmp_path, "several/0").is_file()
    with pytest.raises(RecordNotFound):
        read_record(tmp_path / "three.jsonl")


def test_an_unusable_directory_is_refused_with_the_option_name(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError) as caught:
        RecordFiles(tmp_path / "file" / "records", 1)
    assert caught.value.param == "record_dir"


def test_lines_are_plain_json(tmp_path: Path) -> None:
    with record_files(tmp_path) as files:
        lines = [json.loads(line) for line in write(files).read_text().splitlines()]
    assert [next(iter(line)) for line in lines] == ["version", "step", "choices"]


def test_a_schedule_is_summarised_in_passages() -> None:
    """A prompt of three tokens in two chunks, three decodes, a draft, and a preemption that keeps two tokens."""
    lost = {"preemptions": 1, "cached": 2}
    shares = [
        StepShare("it", 0, 0, 2),
        StepShare("it", 0, 2, 1, sampled=(5,)),
        *(StepShare("it", 0, start, 1, sampled=(5,)) for start in (3, 4, 5)),
        StepShare("it", 0, 6, 1, drafts=(5, 6), accepted=1, sampled=(5, 7)),
        StepShare("it", 0, 2, 4, **lost),
        StepShare("it", 0, 6, 3, sampled=(5,), **lost),
        StepShare("it", 0, 9, 1, sampled=(5,), **lost),
    ]
    record = Record(
        id="it",
        time=0.0,
        origin=ORIGIN,
        request=REQUEST,
        shares=tuple(RecordedShare(number, number + 1, share) for number, share in enumerate(shares)),
    )
    found = [
        (each.work, each.first_step, each.last_step, each.start, each.tokens, each.found) for each in passages(record)
    ]
    assert found == [
        (Work.PROMPT, 0, 0, 0, 2, 0),
        (Work.PROMPT, 1, 1, 2, 1, 0),
        (Work.DECODE, 2, 4, 3, 3, 0),
        (Work.VERIFY, 5, 5, 6, 1, 0),
        (Work.AGAIN, 6, 6, 2, 4, 2),
        (Work.AGAIN, 7, 7, 6, 3, 0),
        (Work.DECODE, 8, 8, 9, 1, 0),
    ]
    assert passages(record)[3] == Passage(
        choice=0,
        work=Work.VERIFY,
        first_step=5,
        last_step=5,
        start=6,
        tokens=1,
        drafted=2,
        accepted=1,
        sampled=2,
        most_rows=6,
    )
