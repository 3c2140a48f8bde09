"""`ferrum quantize`: writes a packed model, which loads by mapping its file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ferrum.cli.options import MODEL_HELP
from ferrum.cli.tables import print_table
from ferrum.core.config import DTYPES, QUANTIZATIONS
from ferrum.core.memory_plan import size
from ferrum.core.option_fields import listed


def quantize(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP)],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The packed directory to write.")],
    quantize: Annotated[str, typer.Option(help=f"Format of the matrices: {listed(QUANTIZATIONS)}.")] = "int8",
    dtype: Annotated[str, typer.Option(help=f"Format before quantisation: {listed(DTYPES)}.")] = "auto",
    group: Annotated[int, typer.Option(help="Inputs per scale: 32, 64 or 128.")] = 32,
) -> None:
    """Quantise a model into a directory that every command accepts as MODEL."""
    from ferrum.engine.progress import loading_bar
    from ferrum.runtime.open_model import open_model
    from ferrum.runtime.packing import pack_directory

    source = open_model(model)
    with loading_bar(model) as progress:
        pack_directory(source, out, quantize, dtype, progress, group=group)
    weights = size((out / "model.safetensors").stat().st_size)
    print_table([("model", model), ("format", quantize), ("directory", str(out)), ("weights", weights)])
