"""`ferrum bench`: a model's speed against this machine's limit, and comparisons of two reports.

So are `bench serve` and `bench quality`. Scripts in the repository's bench/ folder measure everything else.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import fields
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperGroup

from ferrum.bench.serve_options import Level, Load, Target
from ferrum.cli.doctor import processor_name
from ferrum.cli.options import MODEL_HELP, ReportFile, chosen, model_fields, read_text, with_options, writable, written
from ferrum.cli.serve import missing
from ferrum.cli.tables import bar, print_table
from ferrum.core.config import DTYPES, KV_DTYPES, QUANTIZATIONS
from ferrum.core.errors import ConfigError, RequestError, StepError
from ferrum.core.memory_plan import size
from ferrum.core.option_fields import listed

if TYPE_CHECKING:
    from ferrum.bench.bench_run import Prober
    from ferrum.bench.quality import QualityReport
    from ferrum.bench.report import Cell, Change, Origin, Report
    from ferrum.bench.serve_report import ServeReport, Spread
    from ferrum.bench.subject import ExecutorSubject
    from ferrum.bench.workloads import Workload
    from ferrum.core.config import ModelConfig


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
    from ferrum.bench.bench_run import Prober, run_benchmark, setting_of
    from ferrum.bench.shapes import shape_title
    from ferrum.bench.workloads import chosen_workloads, fitting_workloads
    from ferrum.cli.run import show_log

    show_log()
    if options["device"] not in (None, "cpu"):
        raise ConfigError("its limits are those of a CPU: bench/gpu/run.py measures a GPU", param="device")
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
    from ferrum.client.client_base import engine_config
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
    from ferrum.bench.report import Report, compare

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


# ---- `ferrum bench serve`: latency and throughput of an OpenAI-compatible server under load ----

TIMES: Final = (
    ("ttft", "time to first token"),
    ("itl", "inter-token latency"),
    ("tpot", "time per output token"),
    ("e2e", "end to end"),
)


@app.command("serve")
@with_options(fields(Load), "Load")
@with_options(fields(Target), "Server and requests")
@with_options(fields(Level), "Service level for goodput")
def serve(
    api_key_file: Annotated[Path | None, typer.Option(metavar="FILE", help="File with the API key to send.")] = None,
    output: ReportFile = None,
    **options: Any,
) -> None:
    """Measure a server under load: latencies, throughput and goodput."""
    try:
        from ferrum.bench.serve_run import measure_server
    except ImportError as error:
        raise missing("bench serve", error) from None
    load, target = Load(**chosen(fields(Load), options)), Target(**chosen(fields(Target), options))
    level = Level(**chosen(fields(Level), options))
    key = None if api_key_file is None else _key(api_key_file)
    report = measure_server(target, load, level=level, key=key, processor=processor_name())
    with written(report, output):
        print_serve_report(report)
    if sum(report.summary.failures.values()) == report.summary.requests:
        raise StepError(f"all requests failed: {_failures(report)}")


def _failures(report: ServeReport) -> str:
    """Return each kind of failure, its number, and the server's first message about it."""
    said = {each.error: f" ({each.said})" for each in reversed(report.timelines) if each.said is not None}
    return ", ".join(f"{count} x {error}{said.get(error, '')}" for error, count in report.summary.failures.items())


def _key(path: Path) -> str:
    """Return the API key in a file.

    Raises:
        ConfigError: the file is unreadable or its key cannot be sent in a header.
    """
    try:
        key = path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}", param="api_key_file") from None
    if not (key and key.isascii() and key.isprintable()):
        raise ConfigError(f"must hold one key of printable ASCII characters, {path} does not", param="api_key_file")
    return key


def print_serve_report(report: ServeReport) -> None:
    """Print the load, the figures and the distributions of times."""
    summary, load = report.summary, report.load
    rate = f"{load.clients} clients" if load.arrivals == "closed" else load.trace or f"{load.rate:g}/s"
    print_table(
        [
            ("server", report.target.url),
            ("model", str(report.target.model)),
            ("load", f"{load.arrivals} {rate}, {summary.requests} requests after {load.warmup} of warm-up"),
            ("failed", _failures(report) or "none"),
            ("requests", f"{summary.requests_per_second:.2f}/s in {summary.seconds:.1f} s"),
            ("tokens", f"{summary.tokens_per_second:.1f}/s, prompts {summary.prompt_tokens_per_second:.1f}/s"),
            ("goodput", f"{summary.goodput:.2f}/s, {summary.good:.1%} of all requests"),
            ("client delay", f"{1e3 * summary.lateness:.1f} ms at most"),
        ]
    )
    typer.echo()
    rows = [_serve_row(text, getattr(summary, name)) for name, text in TIMES]
    print_table([("MILLISECONDS", "MEAN", "P50", "P90", "P99", "MAX"), *rows])


def _serve_row(text: str, times: Spread | None) -> tuple[str, ...]:
    if times is None:
        return (text, *"-----")
    return (text, *(f"{1e3 * each:.1f}" for each in (times.mean, times.p50, times.p90, times.p99, times.max)))


# ---- `ferrum bench quality`: what the formats of a model cost in quality, next to their bytes ----

OWN: Final = frozenset({"quantize", "dtype", "kv_dtype", "max_batch_size", "kv_capacity"})
"""Options of a model that this command defines or sets itself."""

NONE: Final = "none"
"""Value of `--quantize` for the matrices as they are."""


def drawable(path: Path | None) -> Path | None:
    """Return the path of a plot if it can be written: an option's callback, as `writable`.

    Raises:
        ConfigError: it is no SVG file, or cannot be written.
    """
    if path is not None and path.suffix != ".svg":
        raise ConfigError(f"must end in .svg, not {path.name!r}", param="plot")
    try:
        return writable(path)
    except ConfigError as error:
        raise error.about("plot") from None


@app.command("quality")
@with_options([field for field in model_fields() if field.name not in OWN], "Model")
def quality(
    model: Annotated[list[str], typer.Argument(metavar="MODEL", help=f"Models to judge. {MODEL_HELP}")],
    quantize: Annotated[
        str, typer.Option(help=f"Quantise the matrices on load; several by commas ({NONE}, {listed(QUANTIZATIONS)}).")
    ] = NONE,
    dtype: Annotated[str, typer.Option(help=f"Format of the weights; several by commas ({listed(DTYPES)}).")] = "auto",
    kv_dtype: Annotated[
        str, typer.Option(help=f"Format of keys and values; several by commas ({listed(KV_DTYPES)}).")
    ] = "auto",
    against: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Model to compare with, in float32 (default: the first MODEL)."),
    ] = None,
    text: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="UTF-8 text to predict (default: 3,000 tokens of prose in the package)."),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.svg", help="Draw divergence over size here.", callback=drawable)
    ] = None,
    output: ReportFile = None,
    **options: Any,
) -> None:
    """Measure what formats cost: perplexity, and divergence from the model in float32.

    Every combination of MODEL, --quantize, --dtype and --kv-dtype is a row. All models are loaded at once.
    """
    from ferrum.bench.quality_run import config_of, reference_of
    from ferrum.cli.run import show_log

    show_log()
    shared = chosen(model_fields(), options)
    forms = product(model, *(each.split(",") for each in (dtype, quantize, kv_dtype)))
    judged = [
        config_of(name, {**shared, "dtype": held, "quantize": None if scheme == NONE else scheme, "kv_dtype": kv})
        for name, held, scheme, kv in forms
    ]
    report = measured(reference_of(against or model[0], shared), judged, text)
    with written(report, output):
        if plot is not None:
            from ferrum.bench.quality_plot import drawn

            plot.write_text(drawn(report))
        print_quality_report(report)


def measured(reference: ModelConfig, judged: list[ModelConfig], text: Path | None) -> QualityReport:
    """Return the report of a run, with progress bars on a terminal. Errors as `side_by_side`."""
    from ferrum.bench.quality_run import DEFAULT_TEXT, side_by_side
    from ferrum.bench.report import Origin
    from ferrum.engine.progress import loading_bar, progress_bar

    words = read_text(text or DEFAULT_TEXT, "text")
    with side_by_side(words, reference, judged, loading_bar) as trial:
        origin = Origin.of(trial.reference.executor.traits, processor_name())
        shown = progress_bar(sys.stderr.isatty(), total=trial.passes, desc="forward passes")
        try:
            return trial.run((text or DEFAULT_TEXT).name, origin, shown.update)
        finally:
            shown.close()


def print_quality_report(report: QualityReport) -> None:
    """Print the reference, and a table with a bar for each divergence, the largest of which is full."""
    from ferrum.bench.quality_plot import labels

    reference = report.reference
    held = f"{size(reference.weight_bytes)}, {reference.bits:.2f} bits per weight"
    print_table(
        [
            ("text", f"{report.text}: {report.tokens:,} tokens in spans of {report.span}"),
            ("reference", f"{reference.model} in {reference.format}, KV in {reference.kv_format}"),
            ("", f"{held}, perplexity {report.perplexity:.3f}"),
            ("kernels", f"{report.origin.kernels} on {report.origin.processor}"),
        ]
    )
    typer.echo()
    most = max(row.quality.divergence for row in report.rows) or 1.0
    head = ("FORMAT", "SIZE", "BITS", "PERPLEXITY", "MEAN KL", "", "KL P99", "SAME CHOICE", "")
    body = [
        (
            label,
            size(row.subject.weight_bytes),
            f"{row.subject.bits:.2f}",
            f"{row.quality.perplexity:.3f}",
            f"{row.quality.divergence:.5f}",
            f"± {row.quality.divergence_error:.5f}",
            f"{row.quality.divergence_p99:.4f}",
            f"{row.quality.same_choice:.1%}",
            bar(row.quality.divergence / most),
        )
        for label, row in zip(labels(report), report.rows, strict=True)
    ]
    print_table([head, *body])
