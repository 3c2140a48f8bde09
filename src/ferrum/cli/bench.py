"""`ferrum bench`: a model's speed against this machine's limit, and comparisons of two reports.

`bench serve` is in `bench_serve.py`, `bench quality` in `bench_quality.py`. Scripts in the repository's bench/ folder
measure everything else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperGroup

from ferrum.cli import bench_quality, bench_serve
from ferrum.cli.doctor import processor_name
from ferrum.cli.options import ReportFile, chosen, model_fields, with_options, written
from ferrum.cli.tables import bar, print_table
from ferrum.core.errors import ConfigError, RequestError
from ferrum.core.memory_plan import size

if TYPE_CHECKING:
    from ferrum.bench.compare import Change
    from ferrum.bench.machine import Prober
    from ferrum.bench.report import Cell, Origin, Report
    from ferrum.bench.subject import ExecutorSubject
    from ferrum.bench.workloads import Workload

REGRESSED: Final = 1
"""Exit code of a comparison that found a regression."""


class MeasureByDefault(TyperGroup):
    """A group that runs a command if the arguments name none."""

    default_command = "run"

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert the default command."""
        named = bool(args) and (args[0] in self.commands or args[0] == "--help")
        return super().parse_args(ctx, args if named else [self.default_command, *args])


app = typer.Typer(
    cls=MeasureByDefault,
    help="Measure a model's speed against this machine's limit, what its formats cost, or a server.",
)
app.command("serve")(bench_serve.serve)
app.command("quality")(bench_quality.quality)


@app.command("run")
@with_options(model_fields(), "Model")
def measure(
    model: Annotated[str | None, typer.Argument(metavar="MODEL", help="A directory, a GGUF file, or a hub id.")] = None,
    shape: Annotated[
        str | None,
        typer.Option(help="Random weights in a real model's shape instead of MODEL: qwen3-0.6b, qwen3-30b-a3b, ..."),
    ] = None,
    layers: Annotated[
        int | None, typer.Option(help="Layers of the shape, where memory does not hold all (default: all).")
    ] = None,
    workload: Annotated[
        list[str] | None, typer.Option(help="A workload or a pattern such as 'decode*'; repeatable (default: all).")
    ] = None,
    series: Annotated[int, typer.Option(help="Samples of each workload.", min=1)] = 7,
    output: ReportFile = None,
    **options: Any,
) -> None:
    """Measure a model; `ferrum bench` runs this command if no other is named."""
    from ferrum.bench.bench_run import run_benchmark, setting_of
    from ferrum.bench.machine import Prober
    from ferrum.bench.shapes import shape_title
    from ferrum.bench.workloads import chosen_workloads, fitting_workloads
    from ferrum.cli.run import show_log

    show_log()
    workloads = chosen_workloads(workload or [])
    title = model or "" if shape is None else shape_title(shape, layers)  # fails before anything is loaded
    prober = Prober(options["threads"])
    with load_subject(model, shape, workloads, chosen(model_fields(), options), layers) as subject:
        workloads = fitting_workloads(workloads, workload or [], **subject.limits, report=_progress)
        report = run_benchmark(
            subject,
            prober,
            workloads,
            series=series,
            setting=setting_of(subject, title),
            origin=origin_of(subject, prober),
            progress=_progress,
        )
    with written(report, output):
        print_report(report)


def _progress(line: str) -> None:
    typer.echo(line, err=True)


def load_subject(
    model: str | None,
    shape: str | None,
    workloads: Sequence[Workload],
    options: dict[str, Any],
    layers: int | None = None,
) -> ExecutorSubject:
    """Load a model, or random weights of a shape, with room for the workloads unless the options say otherwise.

    Raises:
        ConfigError: not exactly one of model and shape, or layers without a shape.
    """
    from ferrum.bench.shapes import shape_config
    from ferrum.bench.subject import ExecutorSubject
    from ferrum.bench.workloads import pool_tokens
    from ferrum.client.build import engine_config
    from ferrum.core.config import PAGE_SIZE, with_wide_steps
    from ferrum.runtime.load import build_executor
    from ferrum.runtime.local_executor import LocalStepExecutor
    from ferrum.sources.random_checkpoint import RandomCheckpoint

    if (model is None) == (shape is None):
        raise ConfigError("give either MODEL or --shape, such as --shape qwen3-0.6b", param="shape")
    if layers is not None and shape is None:
        raise ConfigError("needs --shape: a model keeps all of its layers", param="layers")
    room = {
        # One extra sequence: pools of windows are sized by the batch, and the benchmark holds its own page.
        "max_batch_size": 1 + max(each.sequences for each in workloads),
        "kv_capacity": pool_tokens(workloads, PAGE_SIZE),
    }
    name = model or shape or ""
    checkpoint = None if shape is None else RandomCheckpoint(shape, shape_config(shape, layers))
    config = engine_config(name, with_wide_steps({**room, **options}))
    executor = build_executor(LocalStepExecutor, config.model, checkpoint=checkpoint)
    return ExecutorSubject(executor, config, name)


def origin_of(subject: ExecutorSubject, prober: Prober) -> Origin:
    """Return version, time and machine, for a report."""
    from ferrum.bench.report import Origin

    return Origin.of(subject.executor.traits, processor_name(), prober.description)


def print_report(report: Report) -> None:
    """Print the setting, the machine, and a table with a bar for each share of the limit."""
    setting, best = report.setting, report.best
    peaks = ", ".join(f"{getattr(best, name) / 1e9:.0f} {name}" for name in ("float32", "bfloat16", "int8", "int4"))
    print_table(
        [
            ("model", f"{setting.model} in {'+'.join(setting.formats)}, KV in {setting.kv_format}"),
            ("weights", size(report.weight_bytes)),
            ("kernels", f"{report.origin.kernels}, {setting.threads} threads on {report.origin.processor}"),
            ("probes", report.origin.prober),
            ("read", f"{best.read / 1e9:.1f} GB/s"),
            ("peaks", f"{peaks} Gop/s"),
        ]
    )
    typer.echo()
    print_table([("WORKLOAD", "TOK/S", "WITH TOKENS", "LIMIT", "OF LIMIT", "NOISE", ""), *map(_row, report.cells)])


def _row(cell: Cell) -> tuple[str, ...]:
    figures = (f"{figure:.1f}" for figure in (cell.figure, cell.whole, cell.limit))
    return (cell.workload, *figures, f"{cell.ratio:.3f}", _percent(cell.noise), bar(cell.ratio))


def _percent(part: float | None) -> str:
    return "-" if part is None else f"{part:.1%}"


@app.command("compare")
def compare_reports(
    before: Annotated[Path, typer.Argument(metavar="A.json", help="The report to compare with.")],
    after: Annotated[Path, typer.Argument(metavar="B.json", help="The report to judge.")],
) -> None:
    """Compare two reports of one setting; exit with 1 for a regression, with 2 if nothing can be judged."""
    from ferrum.bench.compare import compare
    from ferrum.bench.report import Report

    changes = compare(Report.read(before), Report.read(after))
    print_table([("WORKLOAD", "BEFORE", "AFTER", "CHANGE", "NOISE", ""), *map(_change_row, changes)])
    if any(change.regressed for change in changes):
        raise typer.Exit(REGRESSED)
    if not any(change.known for change in changes):
        raise RequestError("no change can be judged: measure again with a larger --series", param="report")


def _change_row(change: Change) -> tuple[str, ...]:
    return (
        change.workload,
        "-" if change.before is None else f"{change.before:.3f}",
        "-" if change.after is None else f"{change.after:.3f}",
        "-" if change.relative is None else f"{change.relative:+.1%}",
        "unknown" if math.isinf(change.noise) else f"{change.noise:.1%}",
        "regressed" if change.regressed else "",
    )
