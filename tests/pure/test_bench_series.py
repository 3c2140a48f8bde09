"""Probes, samples and their verdicts, on scripted time lines: which count, and what they are judged by."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from bench_kit import rates
from ferrum.bench import machine
from ferrum.bench.limits import Rates
from ferrum.bench.machine import NumpyProber, choose_prober, seconds_of_others
from ferrum.bench.probes import Judge, state_levels
from ferrum.bench.series import Bench, Sample, judge, judge_of
from ferrum.bench.subject import Times
from ferrum.bench.workloads import Kind, Workload
from ferrum.core.errors import Unsupported

DECODE = Workload("decode", Kind.DECODE, 2, 8, 5)
PREFILL = Workload("prefill", Kind.PREFILL, 1, 0, 10)


def reading(by: Rates) -> float:
    """Limit of a workload that only reads: 10e9 bytes."""
    return 10e9 / by.read


def multiplying(by: Rates) -> float:
    """Limit of a workload that only multiplies."""
    return 10e9 / by.bfloat16


@dataclass
class Script:
    """A subject, a prober, an account of others' time and a clock that read from one script; notes who was asked."""

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

    def bench(self) -> Bench:
        return Bench(self, self.probe, lambda: self.used, lambda: self.now)


def quiet(text: str) -> None:
    """Nobody listens."""


# States and probes


def test_two_states_of_a_shared_host_are_both_found():
    seen = [82, 80, 79, 81, 52, 51, 50.5, 52, 81]
    assert state_levels(seen) == (82, 52)


def test_a_weak_probe_is_no_state_unless_others_confirm_it():
    assert state_levels([80, 79, 78, 55]) == (80,)
    assert state_levels([80, 79, 78, 55, 54]) == (80,)
    assert state_levels([80, 79, 78, 55, 54, 53]) == (80, 55)


def test_a_single_fast_probe_is_a_state_because_nothing_reads_too_fast():
    assert state_levels([80, 52, 52, 52]) == (80, 52)


@pytest.mark.parametrize(
    ("read", "counts"), [(80, True), (76.1, True), (75.9, False), (52, True), (49.5, True), (49, False)]
)
def test_a_probe_counts_within_five_percent_of_its_states_best(read, counts):
    probes = [rates(80), rates(79), rates(52), rates(51), rates(52)]
    by = Judge.of([*probes, rates(read)], probes)
    assert by.counts(rates(read), reading) is counts


def test_disturbed_probes_cannot_make_a_state():
    slow = [rates(40)] * 5
    assert Judge.of([rates(80), *slow], [rates(80)]).levels == (80e9,)
    assert Judge.of([rates(80), *slow], [rates(80), *slow]).levels == (80e9, 40e9)


def test_weakness_in_what_a_workload_does_not_lean_on_is_forgiven():
    by = Judge.of([rates(80, 1000), rates(60, 1000), rates(80, 700)], [])
    assert by.counts(rates(60, 1000), multiplying)
    assert not by.counts(rates(60, 1000), reading)
    assert by.counts(rates(80, 700), reading)
    assert not by.counts(rates(80, 700), multiplying)


def test_a_sample_is_judged_by_the_stronger_probe_and_counts_where_both_agree():
    probes = [rates(80), rates(78), rates(52), rates(52), rates(52)]
    by = Judge.of(probes, probes)
    assert by.limit_between(rates(80), rates(78), reading) == (10 / 80, True)
    assert by.limit_between(rates(78), rates(80), reading) == (10 / 80, True)
    assert by.limit_between(rates(80), rates(52), reading) == (10 / 80, False)
    assert by.limit_between(rates(52), rates(40), reading) == (10 / 52, False)


# Series


def test_series_are_interleaved_with_a_probe_between_any_two_samples():
    script = Script(times=itertools.repeat(1.0))
    turns = [partial(script.asked.append, peer) for peer in ("one", "other")]
    samples = script.bench().measure([DECODE, PREFILL], 2, turns, quiet)
    ours = ["probe", "decode", "probe", "prefill", "probe"]
    assert script.asked == [*ours, "one", *ours, "other"] * 2
    assert [sample.workload for sample in samples] == ["decode", "prefill"] * 4


def test_the_probe_after_a_sample_is_the_one_before_the_next():
    probes = [rates(80), rates(79), rates(78)]
    first, second = Script([1, 1], probes).bench().measure([DECODE, PREFILL], 1, [], quiet)
    assert (first.before, first.after) == (probes[0], probes[1])
    assert (second.before, second.after) == (probes[1], probes[2])


def test_a_disturbed_sample_is_taken_again_once_and_does_not_count():
    script = Script(times=itertools.repeat(1.0), busy=[1.5, 0.0, 1.5, 1.5])
    told: list[str] = []
    samples = script.bench().measure([DECODE], 2, [], told.append)
    assert [sample.quiet for sample in samples] == [False, True, False, False]
    assert samples[0].others == pytest.approx(1.5, abs=0.03)
    assert sum("disturbed" in each for each in told) == 2
    judged = judge(samples, DECODE, reading, judge_of(samples))
    assert [each.counted for each in judged] == [False, True, False, False]


def test_without_an_account_of_others_samples_count():
    bench = Bench(Script([1.0]), rates, lambda: None)
    (sample,) = bench.measure([DECODE], 1, [], quiet)
    assert sample.others is None
    assert sample.quiet


def test_figures_are_tokens_of_all_sequences_per_second_and_only_of_the_workload_asked_for():
    samples = [
        Sample("prefill", 9.0, 9.0, 0.0, rates(80), rates(80)),
        Sample("decode", 0.5, 1.0, 0.0, rates(80), rates(80)),
    ]
    (judged,) = judge(samples, DECODE, reading, judge_of(samples))
    assert (judged.figure, judged.whole, judged.limit) == (20.0, 10.0, 80.0)
    assert judged.ratio == 0.25


# The machine


def test_others_time_is_all_busy_and_stolen_time_but_ones_own(tmp_path, monkeypatch):
    stat = tmp_path / "stat"
    stat.write_text("cpu  1000 200 300 99999 88888 10 20 30 0 0\n")
    monkeypatch.setattr(machine.os, "sysconf", lambda name: 100)
    monkeypatch.setattr(machine.os, "times", lambda: type("T", (), {"user": 2.0, "system": 1.0}))
    assert seconds_of_others(stat) == pytest.approx(15.6 - 3.0)
    assert seconds_of_others(tmp_path / "none") is None
    stat.write_text("nonsense\n")
    assert seconds_of_others(stat) is None


def test_of_processors_that_are_not_ours_nothing_counts(tmp_path, monkeypatch):
    stat = tmp_path / "stat"
    each = [f"cpu{number} {10**number} 0 0 5 5 0 0 0 0 0" for number in range(4)]
    stat.write_text("\n".join(["cpu  1111 0 0 20 20 0 0 0 0 0", *each, "intr 5 6"]))
    monkeypatch.setattr(machine.os, "sysconf", lambda name: 100)
    monkeypatch.setattr(machine.os, "times", lambda: type("T", (), {"user": 0.0, "system": 0.0}))
    for allowed, ticks in (({1, 2}, 110), ({3}, 1000), ({2, 9}, 1111)):
        monkeypatch.setattr(machine.os, "sched_getaffinity", lambda _, allowed=allowed: allowed)
        assert seconds_of_others(stat) == pytest.approx(ticks / 100)


def test_a_probe_reads_more_than_the_caches_hold(tmp_path):
    assert machine.probed_bytes(tmp_path) == 256 << 20
    for number in range(16):
        cache = tmp_path / f"cpu{number}" / "cache" / "index3"
        cache.mkdir(parents=True)
        (cache / "size").write_text("98304K\n")
        first = number // 8 * 8
        (cache / "shared_cpu_list").write_text(f"{first}-{first + 7}\n")
    assert machine.probed_bytes(tmp_path) == 4 * 2 * 96 << 20


def test_without_the_library_numpy_probes_and_says_that_it_is_weaker(monkeypatch):
    def missing() -> None:
        raise Unsupported("native CPU kernels", "not built, for this test")

    monkeypatch.setattr(machine, "load", missing)
    monkeypatch.setattr(machine, "_BYTES", 1 << 20)
    prober = choose_prober(None)
    assert isinstance(prober, NumpyProber)
    assert "lower" in prober.description
    measured = prober()
    assert measured.read > 0
    assert measured.float32 == measured.bfloat16 == measured.int8 == measured.int4 > 0


def test_the_systems_own_account_is_read_where_there_is_one():
    assert (seconds_of_others() is not None) == Path("/proc/stat").exists()
