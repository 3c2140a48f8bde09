"""The benchmark on a real tiny model: what it runs is what it says, and it leaves the pool as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench_kit import rates
from ferrum.bench.bench_run import receipt, setting_of
from ferrum.bench.limits import weights
from ferrum.bench.report import Report
from ferrum.bench.serve_process import write_shape
from ferrum.bench.shapes import SHAPES
from ferrum.bench.subject import ExecutorSubject
from ferrum.bench.workloads import Kind, Workload
from ferrum.cli.main import execute
from ferrum.core.errors import KvExhausted
from ferrum.engine.build import engine_config
from ferrum.kernels.interface import StepTables
from ferrum.runtime.checkpoint import Checkpoint
from ferrum.runtime.load import build_executor
from ferrum.runtime.packing import pack_directory
from ferrum.runtime.random_checkpoint import RandomCheckpoint
from ferrum.scheduler.step_cost_model import StepCosts
from tiny import directory_of, find

DECODE = Workload("decode", Kind.DECODE, 3, 100, 2)
PREFILL = Workload("prefill", Kind.PREFILL, 1, 0, 130)
ENGINE = Workload("engine", Kind.ENGINE, 3, 100, 6)
SERVE = Workload("serve", Kind.SERVE, 3, 20, 4)

WINDOWS = {"use_sliding_window": True, "sliding_window": 70, "max_window_layers": 1}


@contextmanager
def subject_of(
    kernels: str = "auto", max_rows: int = 64, capacity: int = 1024, **changes: Any
) -> Iterator[ExecutorSubject]:
    config = engine_config("tiny", {"kernels": kernels, "kv_capacity": capacity, "max_batch_size": 4})
    checkpoint = RandomCheckpoint("tiny", {**SHAPES["tiny"], **changes})
    executor = build_executor(config.model, checkpoint=checkpoint, max_rows=max_rows)
    with ExecutorSubject(executor, config, "tiny") as subject:
        yield subject


def spied(subject: ExecutorSubject, monkeypatch: pytest.MonkeyPatch) -> list[StepTables]:
    """The tables of every pass from now on."""
    seen: list[StepTables] = []
    begin = subject.executor.lm.kernels.begin

    def noted(tables: StepTables) -> None:
        seen.append(tables)
        begin(tables)

    monkeypatch.setattr(subject.executor.lm.kernels, "begin", noted)
    return seen


@pytest.mark.parametrize("changes", [{}, WINDOWS])
@pytest.mark.parametrize("workload", [DECODE, PREFILL, ENGINE, SERVE], ids=lambda each: each.name)
def test_a_sample_takes_time_and_gives_every_page_back(workload, changes):
    with subject_of(**changes) as subject:
        pages = subject.executor.lm.pages
        used = pages.used
        times = subject.run(workload)
        assert times.bare > 0
        assert times.whole > 0
        assert pages.used == used
        pages.check()


def test_a_decoding_sample_is_its_passes_at_the_stated_context_on_pages_of_their_own(monkeypatch):
    with subject_of() as subject:
        seen = spied(subject, monkeypatch)
        subject.run(DECODE)
    whole, bare = seen[: DECODE.tokens + 1], seen[DECODE.tokens + 1 :]
    assert len(bare) == DECODE.tokens + 1, "one pass before the clock starts, of either kind"
    assert [set(tables.positions) for tables in whole] == [{100}, {101}, {102}]
    assert all(set(tables.positions) == {100} for tables in bare)
    assert all(len(tables.token_ids) == len(tables.logit_rows) == 3 for tables in seen)
    pages = bare[0].pages[0]
    assert pages.shape == (3, 2)
    assert len(np.unique(pages)) == 6, "nothing is read from a neighbour's page"


def test_a_prompt_runs_in_passes_of_the_planned_rows_and_asks_for_its_last_logits_only(monkeypatch):
    with subject_of() as subject:
        seen = spied(subject, monkeypatch)
        subject.run(PREFILL)
    for passes in (seen[:3], seen[4:]):
        assert [len(tables.token_ids) for tables in passes] == [64, 64, 2]
        assert [list(tables.logit_rows) for tables in passes] == [[], [], [1]]
        assert [tables.positions[0] for tables in passes] == [0, 64, 128]


def test_an_engines_turns_decode_every_sequence_and_hold_their_passes():
    with subject_of() as subject:
        replay = subject.executor.lm.replay
        times = subject.run(ENGINE)
        assert 0 < times.bare < times.whole
        assert subject.executor.lm.replay is replay, "the watch is taken off again"


def test_all_sequences_of_an_engines_turns_decode_where_steps_are_long(monkeypatch):
    """There an engine takes prompts in small pieces while others decode: here a token seems to take a second."""
    monkeypatch.setattr(StepCosts, "predict", lambda self, rows, context: float(rows))
    with subject_of(capacity=2048) as subject:
        subject.run(Workload("engine", Kind.ENGINE, 4, 400, 4))


def test_a_receipt_accounts_for_every_operation_of_every_pass():
    with subject_of() as subject:
        timed = subject.receipt(PREFILL)
        ops = subject.costs.program.ops
        probe = rates()
        lines = receipt(timed, subject.costs, PREFILL, subject.max_rows, probe)
        assert sum(line.count for line in lines) == 3 * len(ops)
        assert sum(line.seconds for line in lines) == pytest.approx(sum(seconds for _, seconds in timed))
        whole = subject.costs.seconds(PREFILL.passes(subject.max_rows), probe)
        assert sum(line.limit for line in lines) == pytest.approx(whole)
        assert subject.receipt(SERVE) == []


def test_a_pool_that_is_too_small_is_told_with_the_option_that_helps():
    with subject_of(capacity=128) as subject, pytest.raises(KvExhausted, match="--kv-capacity"):
        subject.run(DECODE)


def test_the_limit_counts_the_bytes_that_are_really_held():
    with subject_of() as subject:
        held = sum(weight.nbytes for weight in weights(subject.costs.program))
        assert held == subject.executor.memory_plan.weights
        (part,) = subject.executor.memory_plan.pool
        assert sum(subject.costs.kv_bytes) * SHAPES["tiny"]["num_hidden_layers"] == part.page_bytes / part.page_size


@pytest.mark.parametrize(
    ("packed", "asked", "group"),
    [
        (128, {}, 128),
        (32, {}, None),
        (64, {"quantize": "int4", "group": 64}, 64),
        (None, {"quantize": "int4", "group": 64}, 64),
        (None, {"quantize": "int8"}, None),
        (None, {}, None),
    ],
)
def test_a_setting_has_the_group_of_what_was_loaded(tmp_path: Path, packed, asked, group):
    directory = directory_of(find("llama3"))
    if packed is not None:
        pack_directory(Checkpoint(directory), tmp_path / "packed", "int4", group=packed)
        directory = tmp_path / "packed"
    config = engine_config(str(directory), {"kv_capacity": 128, "max_batch_size": 1, **asked})
    with ExecutorSubject(build_executor(config.model), config, "m") as subject:
        assert setting_of(subject, "m").group == group


def test_the_command_measures_a_shape_and_writes_a_report_that_is_one(tmp_path: Path, capsys):
    path = tmp_path / "report.json"
    chosen = ["--workload", "decode@128", "--workload", "prefill128", "--workload", "serve16"]
    assert execute(["bench", "--shape", "tiny", "--series", "1", *chosen, "--output", str(path)]) == 0
    report = Report.read(path)
    assert [cell.workload for cell in report.cells] == ["decode@128", "prefill128", "serve16"]
    assert report.setting.model == "tiny"
    assert report.setting.formats == ("bfloat16",)
    assert all(cell.ratio == pytest.approx(cell.figure / cell.limit) for cell in report.cells if len(cell.samples) == 1)
    shown = capsys.readouterr().out
    assert all(cell.workload in shown for cell in report.cells)
    assert execute(["bench", "compare", str(path), str(path)]) == 2
    assert "no change can be judged" in capsys.readouterr().err, "one sample says nothing"


def test_a_batch_beyond_the_usual_step_is_measured():
    wide = ["--max-batch-size", "600", "--workload", "prefill128"]
    assert execute(["bench", "--shape", "tiny", "--series", "1", *wide]) == 0


def test_a_workload_that_fills_the_context_fits_the_pool():
    full = ["--max-sequence-length", "128", "--workload", "prefill128"]
    assert execute(["bench", "--shape", "tiny", "--series", "1", *full]) == 0


def test_a_context_below_a_page_is_told_as_any_that_is_too_short(capsys):
    assert execute(["bench", "--shape", "tiny", "--max-sequence-length", "32", "--workload", "prefill128"]) == 2
    assert "more tokens than the context of 32: prefill128 (128)" in capsys.readouterr().err


def test_the_command_measures_what_fits_the_context(tmp_path: Path, capsys):
    path = tmp_path / "report.json"
    short = ["bench", "--shape", "tiny", "--series", "1", "--max-sequence-length", "145"]
    assert execute([*short, "--workload", "*128", "--output", str(path)]) == 0
    assert [cell.workload for cell in Report.read(path).cells] == ["decode@128", "prefill128"]
    assert "left out, more tokens than the context of 145: engine1@128 (192)" in capsys.readouterr().err
    assert execute([*short, "--workload", "decode@128", "--workload", "decode@1024"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("ferrum: workload: ") and "series" not in told


@pytest.mark.parametrize(
    ("options", "named", "told"),
    [
        (["--max-batch-size", "4", "--workload", "engine32@256"], "max_batch_size", "steps of 4: engine32@256 (32)"),
        (["--max-batch-size", "4", "--workload", "batch8@256"], "max_batch_size", "steps of 4: batch8@256 (8)"),
        (["--kv-capacity", "192", "--workload", "decode@128", "--workload", "decode@1024"], "kv_capacity", "of 192: "),
        (["--kv-capacity", "300", "--workload", "serve16"], "kv_capacity", "KV pool of 320: serve16 (384)"),
    ],
)
def test_a_workload_without_room_is_refused_before_anything_is_measured(options, named, told, capsys):
    assert execute(["bench", "--shape", "tiny", "--series", "1", *options]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"ferrum: {named}: more ") and told in error and "series" not in error


def test_where_all_layers_slide_a_context_need_not_fit_the_pool(tmp_path: Path, capsys):
    """Its pool is bounded by the window, whatever the capacity that is asked for."""
    windows = {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 0}
    write_shape("slides", {**SHAPES["tiny"], **windows, "max_position_embeddings": 1100}, tmp_path)
    command = ["bench", str(tmp_path), "--series", "1", "--workload"]
    assert execute([*command, "decode@1024"]) == 0
    assert execute([*command, "decode@1024", "--max-batch-size", "1"]) == 0
    assert execute([*command, "decode@1024", "--kv-capacity", "576"]) == 2
    assert "KV pool of 576: decode@1024 (704)" in capsys.readouterr().err
    assert execute([*command, "prefill128", "--max-sequence-length", "128"]) == 0


def test_what_has_no_room_is_left_out_and_requests_may_wait_for_each_other(tmp_path: Path, capsys):
    path = tmp_path / "report.json"
    small = ["--max-batch-size", "2", "--kv-capacity", "384", "--max-sequence-length", "320"]
    assert execute(["bench", "--shape", "tiny", "--series", "1", *small, "--output", str(path)]) == 0
    told = capsys.readouterr().err
    assert [cell.workload for cell in Report.read(path).cells] == ["decode@128", "prefill128", "engine1@128", "serve16"]
    assert "left out, more sequences than the steps of 2: batch8@256 (8), batch16@256 (16), batch32@256 (32), " in told


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "a model or a shape"),
        (["tiny", "--shape", "tiny"], "a model or a shape"),
        (["--shape", "huge"], "qwen3-0.6b"),
        (["--shape", "tiny", "--workload", "sleep"], "prefill512"),
        (["--shape", "tiny", "--peer", "someone", "--workload", "decode@128"], "llama.cpp"),
        (["--shape", "tiny", "--peer-scripts", "/", "--workload", "decode@128"], "say which with --peer"),
    ],
)
def test_what_cannot_be_measured_is_refused_with_what_can(arguments, told, capsys):
    assert execute(["bench", *arguments]) == 2
    assert told in capsys.readouterr().err
