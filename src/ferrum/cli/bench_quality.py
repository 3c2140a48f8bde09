"""`ferrum bench quality`: what the formats of a model cost in quality, next to their bytes."""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ferrum.cli.doctor import processor_name
from ferrum.cli.options import MODEL_HELP, ReportFile, chosen, model_fields, read_text, with_options, writable, written
from ferrum.cli.tables import bar, print_table
from ferrum.core.config import DTYPES, KV_DTYPES, QUANTIZATIONS
from ferrum.core.errors import ConfigError
from ferrum.core.memory_plan import size
from ferrum.core.option_fields import listed

if TYPE_CHECKING:
    from ferrum.bench.quality import QualityReport
    from ferrum.core.config import ModelConfig

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
        print_report(report)


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


def print_report(report: QualityReport) -> None:
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
