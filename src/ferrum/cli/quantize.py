"""`ferrum quantize`: writes a packed model, which loads by mapping its file."""

from __future__ import annotations

import sys
from collections.abc import Sequence
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
    from ferrum.runtime.adapters.merged_adapters import ScaledAdapter
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
    lora: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH",
            help="Adapter to merge into the model first: a directory, GGUF file or hub id, NAME=PATH, or "
            '{"path": PATH, "scale": NUMBER}. Repeat it for several.',
        ),
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
    from ferrum.core.lora_option import adapters_to_merge
    from ferrum.engine.progress import loading_bar
    from ferrum.quant.scale_search import THOROUGH
    from ferrum.runtime.adapters.merged_adapters import open_adapters
    from ferrum.runtime.packing import check_packing, pack_directory, refuse_used
    from ferrum.sources.open_model import open_model
    from ferrum.sources.other_tokenizer import with_tokenizer

    wanted = adapters_to_merge(lora or ())
    source = open_model(model, models_dir=models_dir)
    if tokenizer is not None:
        source = with_tokenizer(source, tokenizer, models_dir)
    store = check_packing(source, quantize)
    refuse_used(out)
    adapters, importance = open_adapters(source.name, store, wanted), None
    if calibrate is not None:
        importance = measured_inputs(source, read_text(calibrate, "calibrate"), dtype, adapters)
    with loading_bar(model) as progress:
        pack_directory(
            source, out, quantize, dtype, progress, importance=importance, search=THOROUGH, adapters=adapters
        )
    weights = size((out / "model.safetensors").stat().st_size)
    merged = [("adapter", f"{each.file.path}, scale {each.scale:g}") for each in adapters]
    print_table([("model", model), *merged, ("format", quantize), ("directory", str(out)), ("weights", weights)])


def measured_inputs(
    source: ModelSource, text: str, dtype: str, adapters: Sequence[ScaledAdapter] = ()
) -> dict[str, F32]:
    """Return the importance of the inputs of a model's matrices, with progress bars. Errors as `Calibrator`."""
    from ferrum.engine.progress import loading_bar, progress_bar
    from ferrum.runtime.calibration import Calibrator

    with loading_bar(source.name) as progress:
        calibrator = Calibrator(source, text, dtype, progress, adapters)
    with calibrator:
        shown = progress_bar(sys.stderr.isatty(), total=len(calibrator.spans), desc="calibration")
        try:
            return calibrator.run(shown.update)
        finally:
            shown.close()
