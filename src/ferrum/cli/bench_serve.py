"""`ferrum bench serve`: what a server makes of a load, at any OpenAI-compatible URL or started for the occasion."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import fields, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ferrum.bench.serve_options import Level, Load, Target
from ferrum.cli.doctor import processor_name
from ferrum.cli.options import ReportFile, chosen, engine_fields, option_names, with_options, written
from ferrum.cli.tables import print_table
from ferrum.core.errors import ConfigError, StepError, Unsupported

if TYPE_CHECKING:
    from ferrum.bench.serve_report import ServeOrigin, ServeReport, Spread

TARGET_FIELDS: Final = [field for field in fields(Target) if field.name not in ("url", "model")]
OWN: Final = "http://own"
"""Stands for the address, and for the model's name, of a server that is still to be started or asked."""
TIMES: Final = (
    ("ttft", "to the first token"),
    ("itl", "from piece to piece"),
    ("tpot", "per output token"),
    ("e2e", "to the end"),
)


@with_options(fields(Load), "Load")
@with_options(TARGET_FIELDS, "Requests")
@with_options(fields(Level), "Service level")
@with_options(engine_fields(), "A server of its own")
def serve(
    model: Annotated[str | None, typer.Argument(metavar="MODEL", help="Serve this model, and measure it.")] = None,
    shape: Annotated[str | None, typer.Option(help="Serve random weights of a known shape, and measure them.")] = None,
    url: Annotated[str | None, typer.Option(help="Measure the server that is there: http://127.0.0.1:8000/v1.")] = None,
    served_model: Annotated[
        str | None, typer.Option(help="The model's name there.", show_default="the first that is listed")
    ] = None,
    api_key_file: Annotated[Path | None, typer.Option(help="File with the API key to send.")] = None,
    output: ReportFile = None,
    **options: Any,
) -> None:
    """Measure a server: latencies and throughput under a load, and what of it was well served."""
    try:
        from ferrum.bench.serve_run import measure_server, usual_vocabulary
        from ferrum.bench.serve_run import served_model as first_model
    except ImportError as error:
        raise missing("bench serve", error) from None
    load, level = Load(**chosen(fields(Load), options)), Level(**chosen(fields(Level), options))
    of_server = server_arguments(chosen(engine_fields(), options))
    key = None if api_key_file is None else _key(api_key_file)
    # What no request can have is told before a server is asked, or started.
    asked = chosen(TARGET_FIELDS, options)
    target = Target(url=url or OWN, model=served_model or OWN, **asked)
    with _server(model, shape, url, of_server) as (address, name):
        target = replace(target, url=address, model=served_model or first_model(address, key))
        if "vocabulary" not in asked:
            target = replace(target, vocabulary=usual_vocabulary(address, key))
        report = measure_server(target, load, level=level, key=key, origin=origin, server=(name, *of_server))
    with written(report, output):
        print_report(report)
    if sum(report.summary.failures.values()) == report.summary.requests:
        raise StepError(f"no request was served: {_failures(report)}")


def _failures(report: ServeReport) -> str:
    """Each kind of failure, how often it came, and what the server first said of it."""
    said = {each.error: f" ({each.said})" for each in reversed(report.timelines) if each.said is not None}
    return ", ".join(f"{count} x {error}{said.get(error, '')}" for error, count in report.summary.failures.items())


def _key(path: Path) -> str:
    """The API key of a file. Raises ConfigError where there is none that a header can carry."""
    try:
        key = path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}", param="api_key_file") from None
    if not (key and key.isascii() and key.isprintable()):
        raise ConfigError(f"{path} must have one key, of printable ASCII characters", param="api_key_file")
    return key


def missing(command: str, error: ImportError) -> Unsupported:
    """What to say of a library that is not there, or is there and does not load."""
    told = str(error) if error.name is None else f"{error.name} is missing"
    return Unsupported(command, f"{told}: pip install 'ferrum[server]'")


def server_arguments(options: Mapping[str, Any]) -> list[str]:
    """Options of the engine as arguments of `ferrum serve`."""
    arguments: list[str] = []
    for field in engine_fields():
        value = options.get(field.name)
        if value is not None:
            yes, *no = option_names(field)
            name = "--engine-host" if field.name == "host" else yes
            arguments += ([yes] if value else no) if no else [name, str(value)]
    return arguments


@contextmanager
def _server(model: str | None, shape: str | None, url: str | None, arguments: list[str]) -> Iterator[tuple[str, str]]:
    """The URL of what is to be measured, there while the block lasts, and its name for the report."""
    if sum(given is not None for given in (model, shape, url)) != 1:
        raise ConfigError("give a model, a shape or a URL, one of the three", param="url")
    if url is not None:
        if arguments:
            raise ConfigError(f"the server at {url} has its own: {arguments[0]} has no effect", param="url")
        yield url, url
        return
    from ferrum.bench.serve_process import own_server, subject_of

    with ExitStack() as stack:
        subject = stack.enter_context(subject_of(model or "", shape))
        typer.echo(f"starting a server of {subject.name}", err=True)
        yield stack.enter_context(own_server(subject.model, arguments)).url, subject.name


def origin(fingerprint: str | None) -> ServeOrigin:
    """Here and now, for a report."""
    from ferrum.bench.serve_report import ServeOrigin

    return ServeOrigin(
        ferrum=version("ferrum"),
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        processor=processor_name(),
        system_fingerprint=fingerprint,
    )


def print_report(report: ServeReport) -> None:
    """What was asked, the figures, the times, and charts of the whole run."""
    from ferrum.bench.serve_plot import charts

    summary, load = report.summary, report.load
    rate = f"{load.clients} clients" if load.arrivals == "closed" else load.trace or f"{load.rate:g}/s"
    print_table(
        [
            ("server", " ".join(report.server)),
            ("model", report.target.model),
            ("load", f"{load.arrivals} {rate}, {summary.requests} requests after {load.warmup} of warm-up"),
            ("failed", _failures(report) or "none"),
            ("requests", f"{summary.requests_per_second:.2f}/s in {summary.seconds:.1f} s"),
            ("tokens", f"{summary.tokens_per_second:.1f}/s, prompts {summary.prompt_tokens_per_second:.1f}/s"),
            ("well served", f"{summary.goodput:.2f}/s, {summary.good:.1%} of all"),
            ("client late", f"{1e3 * summary.lateness:.1f} ms at most"),
        ]
    )
    typer.echo()
    rows = [_row(text, getattr(summary, name)) for name, text in TIMES]
    print_table([("MILLISECONDS", "MEAN", "P50", "P90", "P99", "MAX"), *rows])
    typer.echo()
    for line in charts(report.timelines):
        typer.echo(line)


def _row(text: str, times: Spread | None) -> tuple[str, ...]:
    if times is None:
        return (text, *"-----")
    return (text, *(f"{1e3 * each:.1f}" for each in (times.mean, times.p50, times.p90, times.p99, times.max)))
