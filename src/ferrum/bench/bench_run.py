"""One run of the benchmark: from a loaded model to a report."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from ferrum.bench.limits import Costs, Rates, seconds_of, weights
from ferrum.bench.machine import Prober
from ferrum.bench.peers import PeerSeries
from ferrum.bench.probes import Judge
from ferrum.bench.report import VERSION, Cell, Origin, Report, Setting, Spent, cell
from ferrum.bench.series import Bench, Sample, Tell, judge, judge_of
from ferrum.bench.subject import ExecutorSubject
from ferrum.bench.workloads import Workload
from ferrum.quant.scale_groups import DEFAULT_GROUP


def run_benchmark(
    subject: ExecutorSubject,
    prober: Prober,
    workloads: Sequence[Workload],
    *,
    series: int,
    setting: Setting,
    origin: Origin,
    peers: Sequence[PeerSeries],
    tell: Tell,
) -> Report:
    """Measure, and sum up.

    Args:
        subject: the model.
        prober: of this machine.
        workloads: what to measure.
        series: how often, before each turn of the peers.
        setting, origin: for the report.
        peers: each in all its variants as often.
        tell: told of each sample before it is taken.

    Raises:
        KvExhausted: the pool is too small for a workload.
    """
    turns = [turn for peer in peers for turn in peer.turns]
    samples = Bench(subject, prober).measure(workloads, series, turns, tell)
    by = judge_of(samples)
    cells = []
    for workload in workloads:
        tell(f"receipt  {workload.name}")
        cells.append(_cell(subject, prober, workload, samples, by))
    return Report(
        version=VERSION,
        setting=setting,
        origin=origin,
        weight_bytes=subject.executor.memory_plan.weights,
        best=by.best,
        levels=by.levels,
        cells=tuple(cells),
        peers=tuple(beside for peer in peers for beside in peer.cells(cells)),
    )


def setting_of(subject: ExecutorSubject, name: str) -> Setting:
    """What is measured, for the report; `name` is the model's."""
    held: dict[str, int] = defaultdict(int)
    for weight in weights(subject.costs.program):
        held[weight.format] += weight.nbytes
    formats = tuple(sorted(held, key=lambda format: -held[format]))
    group = subject.executor.traits.group
    return Setting(
        model=name,
        formats=formats,
        kv_format=subject.costs.kv_format,
        threads=subject.threads,
        group=None if group == DEFAULT_GROUP else group,
    )


def _cell(subject: ExecutorSubject, prober: Prober, workload: Workload, samples: Sequence[Sample], by: Judge) -> Cell:
    work = subject.costs.work(workload.passes(subject.max_rows))
    judged = judge(samples, workload, lambda rates: seconds_of(work, rates), by)
    before = prober()
    timed = subject.receipt(workload)
    after = prober()
    stronger = min(before, after, key=lambda rates: seconds_of(work, rates))
    return cell(workload.name, judged, receipt(timed, subject.costs, workload, subject.max_rows, stronger))


def receipt(
    timed: Sequence[tuple[str, float]], costs: Costs, workload: Workload, max_rows: int, rates: Rates
) -> list[Spent]:
    """Where a sample's time went, by kind of operation, what took longest first.

    Args:
        timed: label and seconds of each operation of each pass, in order; empty where the backend cannot tell.
        costs: what the operations must cost.
        workload: what they are the passes of.
        max_rows: how it was cut into passes.
        rates: the machine at that time.
    """
    if not timed:
        return []
    count: dict[str, int] = defaultdict(int)
    seconds: dict[str, float] = defaultdict(float)
    limit: dict[str, float] = defaultdict(float)
    for (label, took), least in zip(timed, _limits(costs, workload, max_rows, rates), strict=True):
        count[label] += 1
        seconds[label] += took
        limit[label] += least
    lines = [Spent(label=each, count=count[each], seconds=seconds[each], limit=limit[each]) for each in count]
    return sorted(lines, key=lambda line: -line.seconds)


def _limits(costs: Costs, workload: Workload, max_rows: int, rates: Rates) -> Iterator[float]:
    """The limit in seconds of each operation of each pass, in order."""
    for spans in workload.passes(max_rows):
        for op in costs.program.ops:
            yield sum(part.seconds(rates) for part in costs.of(op, spans))
