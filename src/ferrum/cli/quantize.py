"""`ferrum quantize`: a model packed once, so that it is ready as soon as it is mapped."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ferrum.cli.tables import print_table
from ferrum.core.config import DTYPES, QUANTIZATIONS
from ferrum.core.memory_plan import size
from ferrum.core.option_fields import listed


def quantize(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A directory, a hub id, or ferrum-tiny.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The packed directory to make.")],
    quantize: Annotated[str, typer.Option(help=f"Format of the matrices. One of {listed(QUANTIZATIONS)}.")] = "int8",
    dtype: Annotated[str, typer.Option(help=f"What they are rounded to before. One of {listed(DTYPES)}.")] = "auto",
    group: Annotated[int, typer.Option(help="Inputs that share a scale. One of 32, 64, 128.")] = 32,
) -> None:
    """Quantise a model into a directory that every command takes in place of it."""
    from ferrum.engine.progress import loading_bar
    from ferrum.runtime.checkpoint import Checkpoint
    from ferrum.runtime.hub import resolve_model
    from ferrum.runtime.packing import pack_directory

    store = Checkpoint(resolve_model(model))
    with loading_bar(model) as progress:
        pack_directory(store, out, quantize, dtype, progress, group=group)
    print_table([("model", model), ("format", quantize), ("directory", str(out)), ("weights", size(_weights(out)))])


def _weights(directory: Path) -> int:
    return (directory / "model.safetensors").stat().st_size
