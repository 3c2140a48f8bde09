"""Scripts in bench/: series that count samples of an undisturbed machine, peers, and turns of servers."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bench_kit import cell_of, costs_of, rates
from ferrum.bench import bench_run
from ferrum.bench.limits import Rates
from ferrum.bench.serve_options import Load
from ferrum.bench.subject import Times
from ferrum.bench.workloads import Kind, Workload
from ferrum.core.errors import ConfigError, Unsupported
from overhead import Arm, take_turns
from peers import PeerChoice, PeerSeries, find_peer, run_command
from series import Judge, Series, Taken, seconds_of_others, state_levels
from series import cell_of as counted_cell

DECODE = Workload("decode", Kind.DECODE, 2, 8, 5)
PREFILL = Workload("prefill", Kind.PREFILL, 1, 0, 10)
COSTS = costs_of("tiny", "bfloat16")
WORK = COSTS.work(DECODE.passes(512))
"""A decode of a small model reads all the time: its limit follows the read bandwidth."""


@dataclass
class Script:
    """A subject, a prober, other processes' time and a clock, all scripted; `asked` is the order of the calls."""

    times: Iterable[float]
    probes: Iterable[Rates] = field(default_factory=lambda: itertools.repeat(rates()))
    busy: Iterable[float] = field(default_factory=lambda: itertools.repeat(0.0))
    asked: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.times, self.probes, self.busy = iter(self.times), iter(self.probes), iter(self.busy)
        self.now = self.used = 0.0

    def run(self, workload: Workload) -> Times:
        self.asked.append(workload.name)
        seconds = next(self.times)
        self.now += seconds
        self.used += seconds * next(self.busy)
        return Times(seconds, 2 * seconds)

    def probe(self) -> Rates:
        self.asked.append("probe")
        return next(self.probes)

    def series(self) -> Series:
        return Series(self, self.probe, lambda: self.used, lambda: self.now)


def taken(before: Rates, after: Rates, others: float = 0.0) -> Taken:
    return Taken("decode", Times(0.5, 1.0), others, before, after)


def test_a_lower_bandwidth_is_a_level_only_if_three_probes_confirm_it():
    assert state_levels([82, 80, 79, 81, 52, 51, 50.5, 52, 81]) == (82, 52)
    assert state_levels([80, 79, 78, 55, 54]) == (80,)
    assert state_levels([80, 52, 52, 52]) == (80, 52), "the best is always a level"


def test_sample_counts_if_probes_agree_and_the_machine_was_quiet():
    slow = [taken(rates(52), rates(52))] * 2
    judge = Judge.of([taken(rates(80), rates(80)), *slow])
    assert judge.levels == (80e9, 52e9)
    assert judge.counted(taken(rates(80), rates(78)), WORK) and judge.counted(slow[0], WORK)
    for unfit in (taken(rates(80), rates(52)), taken(rates(60), rates(60)), taken(rates(80), rates(80), others=1.5)):
        assert not judge.counted(unfit, WORK)


def test_a_cell_has_the_samples_that_count():
    good, bad = taken(rates(80), rates(80)), taken(rates(80), rates(80), others=1.5)
    cell, counted = counted_cell([good, bad, good], DECODE, WORK, Judge.of([good, bad]))
    assert (counted, len(cell.samples), cell.figure, cell.whole) == (2, 2, 20.0, 10.0)
    cell, counted = counted_cell([bad], DECODE, WORK, Judge.of([bad]))
    assert (counted, len(cell.samples)) == (0, 1), "without any that count, all are shown"


def test_series_are_interleaved_with_a_probe_between_any_two_samples():
    script = Script(times=itertools.repeat(1.0))
    turns = [partial(script.asked.append, peer) for peer in ("one", "other")]
    samples = script.series().measure([DECODE, PREFILL], 2, turns, str)
    ours = ["probe", "decode", "probe", "prefill", "probe"]
    assert script.asked == [*ours, "one", *ours, "other"] * 2
    assert [sample.workload for sample in samples] == ["decode", "prefill"] * 4


def test_a_disturbed_sample_is_taken_again_once():
    script = Script(times=itertools.repeat(1.0), busy=[1.5, 0.0, 1.5, 1.5])
    samples = script.series().measure([DECODE], 2, [], str)
    assert [sample.quiet for sample in samples] == [False, True, False, False]
    assert samples[0].others == pytest.approx(1.5, abs=0.03)


def test_time_of_others_is_busy_and_stolen_time_minus_our_own(tmp_path, monkeypatch):
    stat = tmp_path / "stat"
    stat.write_text("cpu  1000 200 300 99999 88888 10 20 30 0 0\n")
    monkeypatch.setattr("series.os.sysconf", lambda name: 100)
    monkeypatch.setattr("series.os.times", lambda: type("T", (), {"user": 2.0, "system": 1.0}))
    assert seconds_of_others(stat) == pytest.approx(15.6 - 3.0)
    assert seconds_of_others(tmp_path / "none") is None


def test_a_probe_reads_more_than_the_caches_hold(tmp_path):
    assert bench_run.probed_bytes(tmp_path) == 256 << 20
    for number in range(16):
        cache = tmp_path / f"cpu{number}" / "cache" / "index3"
        cache.mkdir(parents=True)
        (cache / "size").write_text("98304K\n")
        first = number // 8 * 8
        (cache / "shared_cpu_list").write_text(f"{first}-{first + 7}\n")
    assert bench_run.probed_bytes(tmp_path) == 4 * 2 * 96 << 20


class PeerScript:
    """A peer's script: the figures of each variant, in the order of the calls."""

    def __init__(self, figures: Mapping[str, Sequence[float]]) -> None:
        self.figures = {variant: iter(values) for variant, values in figures.items()}
        self.commands: list[Sequence[str]] = []

    def __call__(self, command: Sequence[str], extra: Mapping[str, str]) -> tuple[int, str]:
        if "-c" in command:
            return 0, ""
        self.commands.append(command)
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


def peer(run: Any = run_command, **changes: Any) -> PeerSeries:
    given = {"name": "llama.cpp", "shape": "qwen3-0.6b", "format": "q8_0", **changes}
    choice = PeerChoice(given["name"], None, given.get("python"))
    found = find_peer(choice, shape=given["shape"], scripts=given.get("scripts"), run=run)
    return PeerSeries(found, given["format"], 2, str)


def test_the_best_variant_of_a_peer_counts_by_its_median(installed):
    script = PeerScript(
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


@pytest.mark.parametrize(
    ("changes", "error"),
    [({"name": "someone"}, ConfigError), ({"shape": "tiny"}, ConfigError), ({}, Unsupported)],
)
def test_a_peer_that_cannot_be_measured_is_refused_before_anything_runs(changes, error):
    with pytest.raises(error):
        peer(**changes)


def test_an_environment_without_the_peer_is_refused(tmp_path):
    (tmp_path / "llamacpp.py").touch()
    with pytest.raises(Unsupported, match="has no llama_cpp"):
        peer(scripts=tmp_path, python=Path(sys.executable))


@pytest.mark.parametrize("line", ["{not json", "[1]", '{"unit": "tok/s", "metric": "prefill512", "median": 0}', ""])
def test_a_failed_run_of_a_peer_leaves_its_other_results(installed, line):
    good = json.dumps({"metric": "prefill512", "unit": "tok/s", "median": 50})

    def run(command: Sequence[str], extra: Mapping[str, str]) -> tuple[int, str]:
        if "RESULTS" in extra:
            Path(extra["RESULTS"]).write_text(line if "2048" in command else good)
        return 0, "last words"

    series = peer(run, **installed)
    for turn in series.turns:
        turn()
    assert isinstance(series.failure, Unsupported)
    assert [each.figure for each in series.cells([cell_of("prefill512", 1.0)])] == [50]


def test_arms_take_turns_and_the_first_turn_does_not_count():
    asked: list[tuple[str, int]] = []

    def arm(name: str, figure: float) -> Any:
        def turn(load: Load) -> float:
            asked.append((name, load.seed))
            return figure + load.seed

        return turn

    turns = {"offline": arm("offline", 100), "thread": arm("thread", 90)}
    assert take_turns(turns, Load(), 2, lambda _: None) == {"offline": [101, 102], "thread": [91, 92]}
    assert [name for name, _ in asked] == ["offline", "thread", "thread", "offline", "offline", "thread"]
    lost = Arm.of("thread", [90, 180, 270], [100, 200, 300])
    assert lost.figure == 180 and lost.lost == pytest.approx(0.1) and lost.noise == pytest.approx(0, abs=1e-12)
