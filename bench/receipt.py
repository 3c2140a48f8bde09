"""Where a step's time goes: seconds of every kind of operation against its limit (a roofline receipt).

python bench/receipt.py --shape qwen3-0.6b --quantize int8 --workload decode@128 prefill512
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from ferrum.bench.bench_run import Prober
from ferrum.bench.limits import Costs, Rates, matrices
from ferrum.bench.subject import ExecutorSubject
from ferrum.bench.workloads import Kind, Workload, chosen_workloads
from ferrum.cli.bench import load_subject
from ferrum.cli.tables import print_table
from ferrum.core.errors import ConfigError
from ferrum.kernels.op_spec import Op
from script import positive, run_script


@dataclass(frozen=True, slots=True)
class Spent:
    """Operations of one label in a sample: their number, seconds, and seconds at the machine's limit."""

    label: str
    count: int
    seconds: float
    limit: float


def label(op: Op) -> str:
    """Return an operation's name and size; operations of one label do the same work."""
    weights = matrices(op)
    if not weights:
        return op.name
    return f"{op.name} {weights[0].shape[1]}>{'+'.join(str(weight.shape[0]) for weight in weights)}"


def timed_operations(subject: ExecutorSubject, workload: Workload) -> list[float]:
    """Return the seconds of every operation of every pass of a sample, in order."""
    lm = subject.executor.lm
    assert lm.replay is not None
    with subject.staged(workload) as passes:
        subject.forward(passes[0])  # warms the caches
        return [seconds for tables in passes for seconds in lm.replay.timed(lm.kernels, tables)]


def receipt(timed: Sequence[float], costs: Costs, workload: Workload, max_rows: int, rates: Rates) -> list[Spent]:
    """Sum the operations of a sample by label, longest first."""
    ops = [(op, spans) for spans in workload.passes(max_rows) for op in costs.program.ops]
    sums: dict[str, list[float]] = defaultdict(lambda: [0, 0.0, 0.0])
    for (op, spans), seconds in zip(ops, timed, strict=True):
        line = sums[label(op)]
        line[0] += 1
        line[1] += seconds
        line[2] += sum(part.seconds(rates) for part in costs.of(op, spans))
    spent = [Spent(name, int(count), seconds, limit) for name, (count, seconds, limit) in sums.items()]
    return sorted(spent, key=lambda line: -line.seconds)


def main() -> None:
    """Print the receipt of each workload."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="qwen3-0.6b")
    parser.add_argument("--quantize")
    parser.add_argument("--threads", type=positive)
    parser.add_argument("--workload", nargs="+", default=["decode@128"])
    given = parser.parse_args()
    options = {name: value for name in ("quantize", "threads") if (value := getattr(given, name)) is not None}
    workloads = chosen_workloads(given.workload)
    if served := [each.name for each in workloads if each.kind is Kind.SERVE]:
        raise ConfigError(f"{served[0]!r} is of a server, which has no receipt", param="workload")
    with load_subject(None, given.shape, workloads, options) as subject:
        prober = Prober(given.threads)
        for workload in workloads:
            subject.run(workload)  # counts the experts that it reads
            timed = timed_operations(subject, workload)
            lines = receipt(timed, subject.costs_of(workload), workload, subject.max_rows, prober())
            rows = [
                (line.label, str(line.count), f"{1e3 * line.seconds:.2f}", f"{line.limit / line.seconds:.1%}")
                for line in lines
            ]
            print_table([(workload.name, "COUNT", "MS", "OF LIMIT"), *rows])


if __name__ == "__main__":
    run_script(main)
