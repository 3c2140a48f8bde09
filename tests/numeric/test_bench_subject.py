"""`ferrum bench` on a tiny model: its passes are the stated ones, and every page is freed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench_kit import EXPERTS, rates
from ferrum.bench.bench_run import setting_of
from ferrum.bench.limits import seconds_of, weights
from ferrum.bench.report import Report
from ferrum.bench.shapes import SHAPES
from ferrum.bench.subject import ExecutorSubject
from ferrum.bench.workloads import Kind, Workload
from ferrum.cli.main import execute
from ferrum.client.client_base import engine_config
from ferrum.core.errors import KvExhausted
from ferrum.kernels.interface import StepTables
from ferrum.runtime.load import build_executor
from ferrum.runtime.packing import pack_directory
from ferrum.sources.model_source import DirectoryModel
from ferrum.sources.random_checkpoint import RandomCheckpoint
from ferrum.verbs.load_executor import LocalExecutor
from native_twin import require_native
from own_server import write_shape
from receipt import receipt, timed_operations
from tiny import directory_of, find

DECODE = Workload("decode", Kind.DECODE, 3, 100, 2)
PREFILL = Workload("prefill", Kind.PREFILL, 1, 0, 130)
SERVE = Workload("serve", Kind.SERVE, 3, 20, 4)

WINDOWS = {"use_sliding_window": True, "sliding_window": 70, "max_window_layers": 1}


@contextmanager
def subject_of(
    kernels: str = "auto", max_rows: int = 64, capacity: int = 1024, **changes: Any
) -> Iterator[ExecutorSubject]:
    config = engine_config("tiny", {"kernels": kernels, "kv_capacity": capacity, "max_batch_size": 4})
    checkpoint = RandomCheckpoint("tiny", {**SHAPES["tiny"], **changes})
    executor = build_executor(LocalExecutor, config.model, checkpoint=checkpoint, max_rows=max_rows)
    with ExecutorSubject(executor, config, "tiny") as subject:
        yield subject


def spied(subject: ExecutorSubject, monkeypatch: pytest.MonkeyPatch) -> list[StepTables]:
    """Return a list that collects the tables of every later pass."""
    seen: list[StepTables] = []
    begin = subject.executor.lm.kernels.begin

    def noted(tables: StepTables) -> None:
        seen.append(tables)
        begin(tables)

    monkeypatch.setattr(subject.executor.lm.kernels, "begin", noted)
    return seen


@pytest.mark.parametrize("changes", [{}, WINDOWS])
@pytest.mark.parametrize("workload", [DECODE, PREFILL, SERVE], ids=lambda each: each.name)
def test_a_sample_takes_time_and_frees_every_page(workload, changes):
    with subject_of(**changes) as subject:
        pages = subject.executor.lm.pages
        used = pages.used
        times = subject.run(workload)
        assert times.bare > 0
        assert times.whole > 0
        assert pages.used == used
        pages.check()


def test_a_decode_sample_runs_at_the_stated_context_on_separate_pages(monkeypatch):
    with subject_of() as subject:
        seen = spied(subject, monkeypatch)
        subject.run(DECODE)
    whole, bare = seen[: DECODE.tokens + 1], seen[DECODE.tokens + 1 :]
    assert len(bare) == DECODE.tokens + 1, "one pass of each kind warms up"
    assert [set(tables.positions) for tables in whole] == [{100}, {101}, {102}]
    assert all(set(tables.positions) == {100} for tables in bare)
    assert all(len(tables.token_ids) == len(tables.logit_rows) == 3 for tables in seen)
    pages = bare[0].pages[0]
    assert pages.shape == (3, 2)
    assert len(np.unique(pages)) == 6, "no page is shared"


def test_a_prompt_runs_in_full_passes_and_only_the_last_has_logits(monkeypatch):
    with subject_of() as subject:
        seen = spied(subject, monkeypatch)
        subject.run(PREFILL)
    for passes in (seen[:3], seen[4:]):
        assert [len(tables.token_ids) for tables in passes] == [64, 64, 2]
        assert [list(tables.logit_rows) for tables in passes] == [[], [], [1]]
        assert [tables.positions[0] for tables in passes] == [0, 64, 128]


def test_a_receipt_sums_every_operation_of_every_pass():
    with subject_of() as subject:
        timed = timed_operations(subject, PREFILL)
        ops = subject.costs.program.ops
        probe = rates()
        lines = receipt(timed, subject.costs, PREFILL, subject.max_rows, probe)
        assert sum(line.count for line in lines) == 3 * len(ops)
        assert sum(line.seconds for line in lines) == pytest.approx(sum(timed))
        whole = seconds_of(subject.costs.work(PREFILL.passes(subject.max_rows)), probe)
        assert sum(line.limit for line in lines) == pytest.approx(whole)


def test_a_pool_that_is_too_small_names_the_option():
    with subject_of(capacity=128) as subject, pytest.raises(KvExhausted, match="--kv-capacity"):
        subject.run(DECODE)


@pytest.mark.parametrize("workload", [DECODE, PREFILL], ids=lambda each: each.name)
def test_limits_count_the_experts_that_a_sample_read(workload, monkeypatch):
    """Blank routers send all rows to the same experts, those of the lowest numbers."""
    require_native()
    read = RandomCheckpoint.read
    monkeypatch.setattr(
        RandomCheckpoint, "read", lambda self, name: read(self, name) * (not name.endswith("mlp.gate.weight"))
    )
    with subject_of("native", **EXPERTS) as subject:
        assert subject.costs_of(workload).spread == 1, "uniform routing is expected before a sample"
        subject.run(workload)
        passes = list(workload.passes(subject.max_rows))
        counted = subject.costs_of(workload).spread * subject.costs.expected_experts(passes)
        assert counted == pytest.approx(2 * 2 * len(passes)), "each pass reads two experts in each of two layers"


def test_without_a_count_limits_expect_uniform_routing():
    with subject_of("reference", **EXPERTS) as subject:
        subject.run(DECODE)
        assert subject.costs_of(DECODE) == subject.costs


def test_requests_never_read_more_experts_than_uniform_routing_expects():
    with subject_of(**EXPERTS) as subject:
        subject.run(SERVE)
        assert 0 < subject.costs_of(SERVE).spread <= 1


def test_the_limit_counts_the_bytes_held_in_memory():
    with subject_of() as subject:
        held = sum(weight.nbytes for weight in weights(subject.costs.program))
        assert held == subject.executor.memory_plan.weights
        (part,) = subject.executor.memory_plan.pool
        assert sum(subject.costs.kv_bytes) * SHAPES["tiny"]["num_hidden_layers"] == part.page_bytes / part.page_size


@pytest.mark.parametrize(
    ("packed", "asked", "formats"),
    [
        ("q8_0", {}, {"q8_0"}),
        ("q4_0", {"quantize": "q4_0"}, {"q4_0", "q8_0"}),
        (None, {"quantize": "q4_0"}, {"q4_0", "q8_0"}),
        (None, {"dtype": "bfloat16"}, {"bfloat16"}),
    ],
)
def test_a_setting_has_the_formats_of_what_was_loaded(tmp_path: Path, packed, asked, formats):
    directory = directory_of(find("llama3"))
    if packed is not None:
        pack_directory(DirectoryModel(directory), tmp_path / "packed", packed)
        directory = tmp_path / "packed"
    config = engine_config(str(directory), {"kv_capacity": 128, "max_batch_size": 1, **asked})
    with ExecutorSubject(build_executor(LocalExecutor, config.model), config, "m") as subject:
        assert set(setting_of(subject, "m").formats) == formats


def test_the_command_measures_a_shape_and_writes_a_report(tmp_path: Path, capsys):
    path = tmp_path / "report.json"
    chosen = ["--layers", "1", "--workload", "decode@128", "--workload", "prefill128", "--workload", "serve16"]
    assert execute(["bench", "--shape", "tiny", "--series", "1", *chosen, "--output", str(path)]) == 0
    report = Report.read(path)
    assert [cell.workload for cell in report.cells] == ["decode@128", "prefill128", "serve16"]
    assert (report.setting.model, report.setting.formats) == ("tiny (1 of 2 layers)", ("bfloat16",))
    assert all(cell.ratio == pytest.approx(cell.figure / cell.limit) for cell in report.cells)
    printed = capsys.readouterr().out
    assert all(cell.workload in printed for cell in report.cells)
    assert execute(["bench", "compare", str(path), str(path)]) == 2
    assert "no change can be judged" in capsys.readouterr().err, "a single sample has unknown noise"


@pytest.mark.parametrize("options", [["--max-batch-size", "600"], ["--max-sequence-length", "128"]])
def test_options_size_the_pool(options):
    assert execute(["bench", "--shape", "tiny", "--series", "1", "--workload", "prefill128", *options]) == 0


@pytest.mark.parametrize(
    ("options", "named", "problem"),
    [
        (["--max-batch-size", "4", "--workload", "batch8@256"], "--max-batch-size", "batch8@256 needs 8 sequences"),
        (["--max-sequence-length", "32", "--workload", "prefill128"], "--workload", "holds 32"),
    ],
)
def test_a_workload_without_room_is_refused_before_anything_is_measured(options, named, problem, capsys):
    assert execute(["bench", "--shape", "tiny", "--series", "1", *options]) == 2
    error = capsys.readouterr().err
    assert named in error and problem in error and "series" not in error


def test_a_model_of_sliding_layers_needs_a_pool_of_its_window_only(tmp_path: Path):
    windows = {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 0}
    write_shape("slides", {**SHAPES["tiny"], **windows, "max_position_embeddings": 1100}, tmp_path)
    command = ["bench", str(tmp_path), "--series", "1", "--workload"]
    assert execute([*command, "decode@1024"]) == 0
    assert execute([*command, "decode@1024", "--max-batch-size", "1"]) == 0


def test_workloads_without_room_are_left_out_and_requests_may_queue(tmp_path: Path, capsys):
    path = tmp_path / "report.json"
    small = ["--max-batch-size", "2", "--kv-capacity", "384", "--max-sequence-length", "320"]
    assert execute(["bench", "--shape", "tiny", "--series", "1", *small, "--output", str(path)]) == 0
    reports = capsys.readouterr().err
    assert [cell.workload for cell in Report.read(path).cells] == ["decode@128", "prefill128", "serve16"]
    assert "left out: batch8@256 needs 8 sequences" in reports


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "either MODEL or --shape"),
        (["tiny", "--shape", "tiny"], "either MODEL or --shape"),
        (["--shape", "huge"], "qwen3-0.6b"),
        (["--shape", "tiny", "--workload", "sleep"], "prefill512"),
        (["--shape", "tiny", "--layers", "3"], "the 2 layers of tiny"),
        (["tiny", "--layers", "1"], "--shape"),
    ],
)
def test_an_invalid_subject_is_refused_with_the_valid_ones(arguments, problem, capsys):
    assert execute(["bench", *arguments]) == 2
    assert problem in capsys.readouterr().err
