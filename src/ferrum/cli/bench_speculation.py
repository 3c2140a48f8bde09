"""`ferrum bench speculation`: what guessing tokens gains on ten recorded texts, at several batch sizes."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ferrum.cli.doctor import processor_name
from ferrum.cli.options import ReportFile, chosen, engine_fields, with_options
from ferrum.cli.tables import print_table
from ferrum.core.config import NGRAM, PAGE_SIZE
from ferrum.core.errors import ConfigError

if TYPE_CHECKING:
    from ferrum.bench.speculation import Gain, SpeculationReport

OTHERS: Final = ("host", "prefix_cache", "max_queue", "record_dir", "record_gib", "generation_config")
"""Options that the measurement sets, or that belong to clients, of which it has none."""

SPECULATION_FIELDS: Final = [field for field in engine_fields() if field.name not in OTHERS]


@with_options(SPECULATION_FIELDS, "Model and engine")
def speculation(
    model: Annotated[str | None, typer.Argument(metavar="MODEL", help="A directory, or a hub id.")] = None,
    shape: Annotated[str | None, typer.Option(help="Random weights of a known shape.")] = None,
    workload: Annotated[list[str] | None, typer.Option(help="A recorded text; repeatable. All by default.")] = None,
    batch: Annotated[
        list[int] | None, typer.Option(help="Sequences at a time; repeatable. 1, 4 and 16.", min=1)
    ] = None,
    tokens: Annotated[int, typer.Option(help="Most tokens of an answer.", min=2)] = 96,
    pairs: Annotated[int, typer.Option(help="How often each is run without and with.", min=1)] = 20,
    output: ReportFile = None,
    add: Annotated[
        bool, typer.Option("--add", help="Add to the report that is there, of other texts or sizes.")
    ] = False,
    **options: Any,
) -> None:
    """Measure what speculation gains: the same answers without and with it, in turns."""
    from ferrum.bench.shapes import shape_config
    from ferrum.bench.speculation import SpeculationReport, measure_gains, scripts_of
    from ferrum.engine.build import engine_config
    from ferrum.runtime.load import build_executor
    from ferrum.runtime.random_checkpoint import RandomCheckpoint

    if (model is None) == (shape is None):
        raise ConfigError("give a model or a shape, one of the two", param="shape")
    if add and output is None:
        raise ConfigError("there is no report to add to", param="output")
    given = chosen(SPECULATION_FIELDS, options)
    if given.get("speculative", NGRAM) != NGRAM:
        raise ConfigError("guesses are looked up here: no draft model knows the recorded texts", param="speculative")
    batches = batch or [1, 4, 16]
    name = model or shape or ""
    checkpoint = None if shape is None else RandomCheckpoint(shape, shape_config(shape))
    scripts = scripts_of(workload or [], tokens)
    longest = max(len(script.prompt) + len(script.answer) for script in scripts.values())
    pages = 2 * max(batches) * (-(-longest // PAGE_SIZE) + 1)  # both run at a time
    room = {"max_batch_size": max(batches), "kv_capacity": pages * PAGE_SIZE}
    config = engine_config(name, {"speculative": NGRAM, **room, **given})
    if max(batches) > (most := config.model.max_batch_size):
        raise ConfigError(f"{max(batches)} are more than max_batch_size = {most}", param="batch")
    with build_executor(config.model, checkpoint=checkpoint) as executor:
        report = _report(name, given, executor.traits.numerics_id)
        if output is not None and add and output.exists():
            report = report.after(SpeculationReport.read(output))
        rows = []
        for gain in measure_gains(executor, config, scripts, batches, pairs=pairs, tell=_tell):
            rows.append(_row(gain))
            report = report.with_gain(gain)
            if output is not None:
                report.write(output)  # each is seconds to minutes of work: what comes after it may fail
    print_table([("TEXT", "BATCH", "STEPS", "WITH", "VERIFIED", "RIGHT", "FASTER", "AT LEAST"), *rows])


def _report(model: str, options: Mapping[str, Any], numerics_id: str) -> SpeculationReport:
    """A report of here and now, without any gain."""
    from ferrum.bench.speculation import SpeculationReport

    return SpeculationReport(
        version=SpeculationReport.LAYOUT,
        model=model,
        options=tuple(f"{option}={value}" for option, value in options.items()),
        ferrum=version("ferrum"),
        numerics_id=numerics_id,
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        processor=processor_name(),
        gains=(),
    )


def _tell(news: str) -> None:
    typer.echo(news, err=True)


def _row(gain: Gain) -> tuple[str, ...]:
    return (
        gain.workload,
        str(gain.sequences),
        str(gain.steps_off),
        str(gain.steps_on),
        str(gain.drafted),
        f"{gain.accepted / gain.drafted:.0%}" if gain.drafted else "-",
        f"{gain.speedup:.2f}x",
        f"{gain.least:.3f}",
    )
