"""`ferrum bench overhead`: what a server takes from the throughput of the engine behind it."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from ferrum.cli.bench_serve import missing, origin, server_arguments
from ferrum.cli.options import ReportFile, chosen, engine_fields, with_options, written
from ferrum.cli.tables import print_table
from ferrum.core.errors import ConfigError

OVERHEAD_FIELDS: Final = [field for field in engine_fields() if field.name != "host"]
"""Options of the engines that are compared; where they run is what the comparison is of."""


@with_options(OVERHEAD_FIELDS, "Model and engine")
def overhead(
    model: Annotated[str | None, typer.Argument(metavar="MODEL", help="A directory, or a hub id.")] = None,
    shape: Annotated[str | None, typer.Option(help="Random weights of a known shape.")] = None,
    clients: Annotated[int, typer.Option(help="Requests of a turn, all at once.", min=1)] = 16,
    prompt_tokens: Annotated[int, typer.Option(help="Tokens of a prompt.", min=1)] = 256,
    output_tokens: Annotated[int, typer.Option(help="Tokens to generate.", min=1)] = 64,
    series: Annotated[int, typer.Option(help="How many turns.", min=1)] = 3,
    output: ReportFile = None,
    **options: Any,
) -> None:
    """Measure what serving costs: the same work offline, and by servers, their engines in a thread and in a process."""
    try:
        from ferrum.bench.serve_overhead import VERSION, OverheadReport, measure_overhead
    except ImportError as error:
        raise missing("bench overhead", error) from None
    from ferrum.bench.serve_process import subject_of

    if (model is None) == (shape is None):
        raise ConfigError("give a model or a shape, one of the two", param="shape")
    given = chosen(OVERHEAD_FIELDS, options)
    arguments = server_arguments(given)
    with subject_of(model or "", shape) as subject:
        load, arms, fingerprint = measure_overhead(
            subject.model,
            given,
            arguments,
            clients=clients,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            series=series,
            tell=lambda news: typer.echo(news, err=True),
        )
    report = OverheadReport(
        version=VERSION, server=(subject.name, *arguments), origin=origin(fingerprint), load=load, arms=arms
    )
    rows = [(arm.name, f"{arm.figure:.1f}", f"{arm.lost:.1%}", _percent(arm.noise)) for arm in arms]
    with written(report, output):
        print_table([("ENGINE", "TOK/S", "LOST", "NOISE"), *rows])


def _percent(part: float | None) -> str:
    return "-" if part is None else f"{part:.1%}"
