"""`ferrum bench speculation`: what guessing tokens gains on ten recorded texts, at several batch sizes."""

from __future__ import annotations

from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ferrum.cli.doctor import processor_name
from ferrum.cli.options import chosen, engine_fields, with_options
from ferrum.cli.tables import print_table
from ferrum.core.errors import ConfigError

if TYPE_CHECKING:
    from ferrum.bench.speculation import Gain

SPECULATION_FIELDS: Final = [field for field in engine_fields() if field.name not in ("host", "prefix_cache")]
"""Options of the model and the engine, but those that the measurement sets."""


@with_options(SPECULATION_FIELDS, "Model and engine")
def speculation(
    model: Annotated[str | None, typer.Argument(metavar="MODEL", help="A directory, or a hub id.")] = None,
    shape: Annotated[str | None, typer.Option(help="Random weights of a known shape.")] = None,
    workload: Annotated[list[str] | None, typer.Option(help="A recorded text; repeatable. All by default.")] = None,
    batch: Annotated[list[int] | None, typer.Option(help="Sequences at a time; repeatable. 1, 4 and 16.")] = None,
    tokens: Annotated[int, typer.Option(help="Most tokens of an answer.", min=2)] = 96,
    pairs: Annotated[int, typer.Option(help="How often each is run without and with.", min=1)] = 20,
    output: Annotated[Path | None, typer.Option(help="Write the report as JSON to this file.")] = None,
    **options: Any,
) -> None:
    """Measure what speculation gains: the same answers without and with it, in turns."""
    from ferrum.bench.shapes import shape_config
    from ferrum.bench.speculation import SpeculationReport, measure_gains, scripts_of
    from ferrum.engine.build import engine_config
    from ferrum.runtime.load import build_executor
    from ferrum.runtime.memory import PAGE_SIZE
    from ferrum.runtime.random_checkpoint import RandomCheckpoint

    if (model is None) == (shape is None):
        raise ConfigError("give a model or a shape, one of the two", param="shape")
    given = chosen(SPECULATION_FIELDS, options)
    if given.get("speculative", "ngram") != "ngram":
        raise ConfigError("guesses are looked up here: no draft model knows the recorded texts", param="speculative")
    started = datetime.now(UTC).isoformat(timespec="seconds")
    batches = batch or [1, 4, 16]
    name = model or shape or ""
    checkpoint = None if shape is None else RandomCheckpoint(shape, shape_config(shape))
    scripts = scripts_of(workload or [], tokens)
    longest = max(len(script.prompt) + len(script.answer) for script in scripts.values())
    pages = 2 * max(batches) * (-(-longest // PAGE_SIZE) + 1)  # both run at a time
    room = {"max_batch_size": max(batches), "kv_capacity": pages * PAGE_SIZE}
    config = engine_config(name, {**room, **given})
    with build_executor(config.model, checkpoint=checkpoint) as executor:
        gains = measure_gains(
            executor, config, scripts, batches, pairs=pairs, tell=lambda news: typer.echo(news, err=True)
        )
    header = ("TEXT", "BATCH", "STEPS", "WITH", "VERIFIED", "RIGHT", "FASTER", "AT LEAST")
    print_table([header, *map(_row, gains)])
    if output is not None:
        report = SpeculationReport(
            version=SpeculationReport.LAYOUT,
            model=name,
            options=tuple(f"{option}={value}" for option, value in given.items()),
            ferrum=version("ferrum"),
            numerics_id=executor.traits.numerics_id,
            started=started,
            processor=processor_name(),
            gains=tuple(gains),
        )
        report.write(output)


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
