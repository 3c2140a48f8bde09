"""`ferrum quantize`: writes a packed model, which loads by mapping its file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ferrum.cli.options import MODEL_HELP, ModelsDirectory, read_text
from ferrum.cli.tables import print_table
from ferrum.core.config import DTYPES, QUANTIZATIONS
from ferrum.core.memory_plan import size
from ferrum.core.option_fields import listed

if TYPE_CHECKING:
    from ferrum.kernels.operations import F32
    from ferrum.sources.model_source import ModelSource


def quantize(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP)],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The packed directory to write.")],
    quantize: Annotated[str, typer.Option(help=f"Format of the matrices: {listed(QUANTIZATIONS)}.")] = "q4_k_m",
    dtype: Annotated[str, typer.Option(help=f"Format before quantisation: {listed(DTYPES)}.")] = "auto",
    calibrate: Annotated[
        Path | None,
        typer.Option(metavar="TEXT", help="UTF-8 text that the model reads first, to weigh errors by its inputs."),
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            help="Directory or hub id whose tokenizer, chat template and generation defaults are packed "
            "(default: the model's own)."
        ),
    ] = None,
    models_dir: ModelsDirectory = None,
) -> None:
    """Quantise a model into a directory that every command accepts as MODEL.

    It searches scales longer than quantising on load does, for less error.
    """
    from ferrum.engine.progress import loading_bar
    from ferrum.quant.scale_search import THOROUGH
    from ferrum.runtime.packing import check_packing, pack_directory, refuse_used
    from ferrum.sources.open_model import open_model
    from ferrum.sources.other_tokenizer import with_tokenizer

    source = open_model(model, models_dir=models_dir)
    if tokenizer is not None:
        source = with_tokenizer(source, tokenizer, models_dir)
    importance = None
    if calibrate is not None:
        check_packing(source, quantize)
        refuse_used(out)
        importance = measured_inputs(source, read_text(calibrate, "calibrate"), dtype)
    with loading_bar(model) as progress:
        pack_directory(source, out, quantize, dtype, progress, importance=importance, search=THOROUGH)
    weights = size((out / "model.safetensors").stat().st_size)
    print_table([("model", model), ("format", quantize), ("directory", str(out)), ("weights", weights)])


def measured_inputs(source: ModelSource, text: str, dtype: str) -> dict[str, F32]:
    """Return the importance of the inputs of a model's matrices, with progress bars. Errors as `Calibrator`."""
    from ferrum.engine.progress import loading_bar, progress_bar
    from ferrum.runtime.calibration import Calibrator

    with loading_bar(source.name) as progress:
        calibrator = Calibrator(source, text, dtype, progress)
    with calibrator:
        shown = progress_bar(sys.stderr.isatty(), total=len(calibrator.spans), desc="calibration")
        try:
            return calibrator.run(shown.update)
        finally:
            shown.close()
