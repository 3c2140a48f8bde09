"""The README's table: tokens per second of ferrum and llama.cpp on one GGUF file, in one run.

    python bench/readme_table.py --python .venv-peers/bin/python --out bench/results/readme_table.json --write
    python bench/readme_table.py --python .venv-peers/bin/python --model FILE.gguf

Without --model the file has random weights in the shape of Qwen3-0.6B, which llama.cpp quantises: speed does not depend
on their values. Samples of both engines alternate, and medians count. Both have their defaults; of llama.cpp the better
of flash attention on and off counts for each row. `make .venv-peers/.made` makes llama.cpp's environment; this process
needs the package `gguf` to write a file. --write puts the table into README.md; a test compares it with the report.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final

from ferrum.bench.bench_run import Prober
from ferrum.bench.limits import seconds_of
from ferrum.bench.shapes import shape_config
from ferrum.bench.workloads import Kind, Workload
from ferrum.cli.bench import load_subject
from ferrum.cli.doctor import processor_name
from ferrum.sources.random_checkpoint import RandomCheckpoint
from llamacpp_process import LlamaCppSteps, peer_version
from script import positive, run_script

SHAPE: Final = "qwen3-0.6b"
README: Final = Path(__file__).parents[1] / "README.md"
RESULT: Final = "bench/results/readme_table.json"
BEGIN, END = "<!-- speed: bench/readme_table.py -->\n", "<!-- end of speed -->\n"
WORKLOADS: Final = (
    Workload("1 user", Kind.DECODE, 1, 512, 32),
    Workload("8 users at once", Kind.DECODE, 8, 512, 8),
    Workload("32 users at once", Kind.DECODE, 32, 512, 4),
    Workload("reading a prompt of 2,048 tokens", Kind.PREFILL, 1, 0, 2048),
)
FLASH: Final = {"flash attention": "1", "no flash attention": "0"}
"""llama.cpp's variants, and the values of their option."""

Seconds = Mapping[str, Sequence[float]]
"""Samples by variant; ferrum's by "ferrum", and those of the machine's limit by "limit"."""


@contextmanager
def model_file(python: Path, given: Path | None, quantize_to: str) -> Iterator[Path]:
    """Yield the file to measure; it is written if none is given."""
    if given is not None:
        yield given
        return
    from adapter_peers import write_model
    from quality_peers import quantize

    with tempfile.TemporaryDirectory() as folder:
        plain, model = Path(folder) / "plain.gguf", Path(folder) / f"{SHAPE}-{quantize_to}.gguf"
        print("writing the file", file=sys.stderr)
        write_model(plain, RandomCheckpoint(SHAPE, shape_config(SHAPE)))
        quantize(str(python), plain, model, quantize_to)
        plain.unlink()
        yield model


def measure(
    python: Path, model: Path, rounds: int, given: Sequence[str] = (), workloads: Sequence[Workload] = WORKLOADS
) -> dict[str, Any]:
    """Return rows, one per workload, and what was read of the machine."""
    probe, reads = Prober(None), list[float]()
    peers = {name: LlamaCppSteps(python, model, "--flash", flash, *given) for name, flash in FLASH.items()}
    seconds: dict[str, dict[str, list[float]]] = {
        workload.name: {name: [] for name in ("ferrum", "limit", *peers)} for workload in workloads
    }
    with load_subject(str(model), None, workloads, {}) as subject:
        for number in range(rounds + 1):
            for workload in workloads:
                print(f"round {number} of {rounds}: {workload.name}", file=sys.stderr)
                sample = {"ferrum": subject.run(workload).whole}
                sample |= {name: peer.run(workload) for name, peer in peers.items()}
                rates = probe()
                reads.append(rates.read)
                work = subject.costs_of(workload).work(workload.passes(subject.max_rows))
                sample["limit"] = seconds_of(work, rates)
                for name, value in sample.items() if number else ():  # the first round warms up
                    seconds[workload.name][name].append(value)
        threads = subject.threads
    for peer in peers.values():
        peer.close()
    rows = [row_of(workload, seconds[workload.name]) for workload in workloads]
    return {"threads": threads, "read_gb_per_second": round(max(reads) / 1e9, 1), "rows": rows}


def row_of(workload: Workload, seconds: Seconds) -> dict[str, Any]:
    """Return the figures of a workload, with llama.cpp's best variant."""
    best = min(FLASH, key=lambda name: median(seconds[name]))
    ours, theirs, limit = (median(seconds[name]) for name in ("ferrum", best, "limit"))
    return {
        "workload": workload.name,
        "ferrum": round(workload.counted_tokens / ours, 1),
        "llama.cpp": round(workload.counted_tokens / theirs, 1),
        "times": round(theirs / ours, 2),
        "of_limit": round(limit / ours, 2),
        "variant": best,
        "seconds": {name: [round(each, 5) for each in values] for name, values in seconds.items()},
    }


def table(report: Mapping[str, Any]) -> str:
    """Return the table and a line on how it was measured, as Markdown."""
    lines = ["| tokens per second | ferrum | llama.cpp | times as fast |", "|---|---:|---:|---:|"]
    for row in report["rows"]:
        ours, theirs = (f"{row[name]:,.0f}" for name in ("ferrum", "llama.cpp"))
        lines.append(f"| {row['workload']} | {ours} | {theirs} | {row['times']:.1f} |")
    size, threads, speed = report["bytes"] / 1e6, report["threads"], report["read_gb_per_second"]
    how = (
        f"{report['model']} ({size:,.0f} MB), {threads} threads of {report['machine']}, which reads {speed:.0f} GB/s; "
        f"llama-cpp-python {report['peer']}; medians of {report['rounds']} samples taken in turns."
    )
    return "\n".join([*lines, "", how, ""])


def with_table(text: str, report: Mapping[str, Any]) -> str:
    """Return the README with the table in place."""
    before, _, rest = text.partition(BEGIN)
    return before + BEGIN + table(report) + END + rest.partition(END)[2]


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", type=Path, required=True, help="interpreter with llama-cpp-python")
    parser.add_argument("--model", type=Path, help=f"GGUF file (default: random weights in the shape of {SHAPE})")
    parser.add_argument("--quantize", default="q4_k_m", help="type of the random file")
    parser.add_argument("--rounds", type=positive, default=7)
    parser.add_argument("--plain", action="store_true", help="llama.cpp repacks no matrices, where its AMX code fails")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--write", action="store_true", help="put the table into README.md")
    options = parser.parse_args()
    peer = peer_version(options.python) + " without repacked matrices" * options.plain
    with model_file(options.python, options.model, options.quantize) as model:
        random = f"Random weights in the shape of {SHAPE}, {options.quantize}"
        about = {"model": random if options.model is None else model.name, "bytes": model.stat().st_size}
        host = {"machine": processor_name(), "peer": peer, "rounds": options.rounds}
        report = {**about, **host, **measure(options.python, model, options.rounds, ["--plain"] * options.plain)}
    print(table(report))
    print("share of the machine's limit:", *(f"{row['of_limit']:.2f}" for row in report["rows"]))
    if options.out is not None:
        options.out.write_text(json.dumps(report, indent=1) + "\n")
    if options.write:
        README.write_text(with_table(README.read_text(), report))


if __name__ == "__main__":
    run_script(main)
