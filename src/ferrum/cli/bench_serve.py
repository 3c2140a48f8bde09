"""`ferrum bench serve`: latency and throughput of an OpenAI-compatible server under load."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ferrum.bench.serve_options import Level, Load, Target
from ferrum.cli.doctor import processor_name
from ferrum.cli.options import ReportFile, chosen, with_options, written
from ferrum.cli.serve import missing
from ferrum.cli.tables import print_table
from ferrum.core.errors import ConfigError, StepError

if TYPE_CHECKING:
    from ferrum.bench.serve_report import ServeReport, Spread

TIMES: Final = (
    ("ttft", "time to first token"),
    ("itl", "inter-token latency"),
    ("tpot", "time per output token"),
    ("e2e", "end to end"),
)


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
        print_report(report)
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


def print_report(report: ServeReport) -> None:
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
    rows = [_row(text, getattr(summary, name)) for name, text in TIMES]
    print_table([("MILLISECONDS", "MEAN", "P50", "P90", "P99", "MAX"), *rows])


def _row(text: str, times: Spread | None) -> tuple[str, ...]:
    if times is None:
        return (text, *"-----")
    return (text, *(f"{1e3 * each:.1f}" for each in (times.mean, times.p50, times.p90, times.p99, times.max)))
