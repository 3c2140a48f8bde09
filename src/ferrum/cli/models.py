"""Commands that manage models: `ferrum list`, `pull`, `plan`, `formats` and `quantize`."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ferrum.cli.options import MODEL_HELP, ModelsDirectory, chosen, engine_fields, model_fields, read_text, with_options
from ferrum.cli.tables import print_table
from ferrum.core.config import DTYPES, QUANTIZATIONS
from ferrum.core.memory_plan import size
from ferrum.core.option_fields import listed

if TYPE_CHECKING:
    from ferrum.core.config import EngineConfig
    from ferrum.core.memory_plan import MemoryPlan, StatePart
    from ferrum.core.output_format import Calls, OutputFormat
    from ferrum.formats.find import FoundFormat
    from ferrum.kernels.operations import F32
    from ferrum.runtime.adapters.merged_adapters import ScaledAdapter
    from ferrum.runtime.load import ModelPlan
    from ferrum.sources.local_models import LocalModel
    from ferrum.sources.model_source import ModelSource


def list_models(models_dir: ModelsDirectory = None) -> None:
    """List the models that load without a network, by the names that load them.

    They are the built-in one, those of --models-dir, of the hub's cache, and of llama.cpp, LM Studio and ollama.
    """
    from ferrum.sources import local_models

    print_table([("MODEL", "SIZE", "FAMILY", "DIRECTORY"), *map(_row, local_models.list_models(models_dir))])


def pull(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="A hub id: org/name, org/name@revision, or org/name:Q4_K_M for a GGUF file."
        ),
    ],
    revision: Annotated[str | None, typer.Option(help="A branch, tag or commit.")] = None,
) -> None:
    """Download a model from the hub, so that it loads without a network."""
    from ferrum.cli.run import show_log
    from ferrum.sources import hub

    show_log()
    print_table([_row(hub.pull(model, revision=revision))])


def _row(model: LocalModel) -> tuple[str, str, str, str]:
    return model.name, size(model.nbytes), model.family or "unknown", str(model.path)


# ---- `ferrum plan`: the memory a model needs, and how many sequences fit ----

_HELD: Final = ("speculative", "swap_gib", "lora", "lora_gib", "image_cache_gib")
"""Options of an engine that take memory."""

_TOWER: Final = "tower for images"
_ROWS: Final = "rows of images"
_ON_HOST: Final = ("libraries", "swapped pages", _TOWER, _ROWS)
"""Parts that are in the memory of the process on every device."""

PLAN_FIELDS: Final = [*model_fields(), *(field for field in engine_fields() if field.name in _HELD)]


@with_options(PLAN_FIELDS, "Model")
def plan(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP)],
    **options: Any,
) -> None:
    """Show the memory a model needs and how many sequences fit, without reading its weights."""
    from ferrum.client.client_base import engine_config
    from ferrum.core.config import with_wide_steps
    from ferrum.runtime.load import plan_model
    from ferrum.runtime.memory import available_memory

    config = engine_config(model, with_wide_steps(chosen(PLAN_FIELDS, options)))
    made = plan_model(config.model, config.reserved_bytes, config.image_bytes)
    extra = _extra(config, made)
    info, memory, context = made.info, made.traits.memory, made.traits.max_sequence_length
    ranks = made.traits.ranks
    takes = _by_place(memory, extra, ranks)
    available = {} if made.device_memory is None else {memory.device: made.device_memory}
    available[_HOST] = available_memory()
    print_table(
        [
            ("model", f"{model} ({info.family}), {info.num_parameters:,} parameters in {_formats(made.formats)}"),
            ("context", f"{context:,} tokens"),
            *([("ranks", f"{ranks}; weights to libraries are those of one")] if ranks > 1 else []),
            ("weights", size(memory.weights)),
            ("KV per token", f"{ceil(memory.kv_per_token):,} B"),
            ("KV pool", f"{size(memory.kv_pool)} for {made.kv_capacity:,} tokens"),
            *_states(memory.states),
            ("activations", f"{size(memory.activations)} ({memory.activation_row:,} B per token of a step)"),
            ("tables", size(memory.tables)),
            ("libraries", size(memory.libraries)),
            *((name, size(nbytes)) for name, nbytes in extra.items()),
            ("total", _listed(takes) if ranks == 1 else f"{_listed(takes)} on all ranks"),
            ("available", _listed(available)),
        ]
    )
    for note in made.traits.notes:
        typer.echo(f"\nNote: {note}")
    for place, nbytes in takes.items():
        if nbytes > available[place]:
            parts = {"weights": memory.weights, "KV pool": memory.kv_pool, "libraries": memory.libraries, **extra}
            largest = max((name for name in parts if _place_of(name, memory) == place), key=parts.__getitem__)
            where = f" on {place}" if len(takes) > 1 else ""
            excess = size(nbytes - available[place])
            typer.echo(f"\nThis exceeds the available memory{where} by {excess}; the largest part: {largest}.")
    typer.echo()
    fitting = [(f"{length:,}", f"{count:,}") for length, count in memory.fitting(context)]
    print_table([("LENGTH", "SEQUENCES THAT FIT"), *fitting])


_HOST: Final = "the host"


def _by_place(memory: MemoryPlan, extra: Mapping[str, int], ranks: int) -> dict[str, int]:
    """Return the bytes in the memory of each place, of all ranks: the host, and the device of the model."""
    takes = {memory.device: memory.on_device} if memory.on_device else {}
    takes[_HOST] = memory.on_host * ranks
    for name, nbytes in extra.items():
        takes[_place_of(name, memory)] += nbytes
    return takes


def _place_of(part: str, memory: MemoryPlan) -> str:
    """Return where a part of the memory is."""
    return memory.device if memory.on_device and part not in _ON_HOST else _HOST


def _listed(places: Mapping[str, int]) -> str:
    """Return the bytes of places as text; a single place needs no name."""
    if len(places) == 1:
        return size(*places.values())
    return ", ".join(f"{size(nbytes)} on {place}" for place, nbytes in places.items())


def _states(states: StatePart | None) -> list[tuple[str, str]]:
    """Return the row of the slots of states, which are a part of the KV pool."""
    if states is None:
        return []
    sequences, snapshots = f"{states.sequences:,} sequences", f"{states.snapshots:,} snapshots"
    slots = f"{states.num_slots:,} slots of {size(states.slot_bytes)}"
    return [("  of it states", f"{size(states.nbytes)}: {slots} for {sequences} and {snapshots}")]


def _formats(formats: Mapping[str, int]) -> str:
    """Return the names of the matrices' formats; of several, with the share of the numbers that each holds."""
    total = sum(formats.values())
    shares = {name: count / total for name, count in sorted(formats.items(), key=lambda each: -each[1])}
    return ", ".join(name if len(shares) == 1 else f"{name} {share:.0%}" for name, share in shares.items())


def _extra(config: EngineConfig, target: ModelPlan) -> dict[str, int]:
    """Return the bytes an engine holds in addition to its model, by purpose."""
    from ferrum.core.errors import ModelNotFound
    from ferrum.engine.draft_setup import check_vocabularies, draft_config
    from ferrum.runtime.load import plan_model

    held = {}
    options = draft_config(config, target.kv_capacity)
    if options is not None:
        try:
            draft = plan_model(options)
        except ModelNotFound as error:
            raise error.about("speculative") from None
        # A plan does not download the tokenizers of hub models.
        check_vocabularies(target.info, draft.info, lambda: 0)
        held["draft model"] = draft.traits.memory.own
    if config.swap_gib:
        held["swapped pages"] = config.swap_gib << 30
    if config.lora:
        held["adapters"] = config.adapter_bytes
        held["steps with adapters"] = target.traits.memory.activations
    if target.tower:
        held[_TOWER], held[_ROWS] = target.tower, config.image_bytes
    return held


# ---- `ferrum formats`: how a model writes reasoning and tool calls, and how that was found ----

FORMAT_FIELDS: Final = [field for field in engine_fields() if field.name in ("models_dir", "tokenizer", "tool_format")]
"""The options of a model that its output format depends on."""

_SOURCES: Final = {
    "response_template": "the tokenizer's response_template",
    "template": "the chat template, by analysis",
    "known": "the chat template, by its texts",
}
_EXAMPLE: Final = (
    ("get_weather", {"city": "Zürich", "days": 3}),
    ("get_time", {"zone": {"name": "CET", "offset": 1}}),
)


@with_options(FORMAT_FIELDS, "Model")
def formats(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP)],
    chat_template: Annotated[
        str | None, typer.Option(metavar="FILE", help="File with a chat template that replaces the model's own.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the format as JSON, as --tool-format reads it.")
    ] = False,
    **options: Any,
) -> None:
    """Show how a model writes reasoning and tool calls, without reading its weights."""
    from ferrum.formats.find import prompt_reasoning

    values = chosen(FORMAT_FIELDS, options)
    found, template = _found(model, chat_template, values)
    if as_json:
        typer.echo(json.dumps(None if found.format is None else found.format.to_dict(), ensure_ascii=False, indent=2))
        if found.reason:
            typer.echo(f"No tools: {found.reason}", err=True)
        return
    rows = [("model", model)]
    if found.format is not None:
        where = "--tool-format" if "tool_format" in values else _SOURCES[found.format.source]
        rows += [("format", f"{found.format.name}, from {where}"), *_rows(found.format)]
        variables = () if template is None else prompt_reasoning(template)
        rows.append(("variables of reasoning", ", ".join(variables) or "none"))
    print_table(rows)
    if found.reason:
        step = "" if template is None else " Choose a format with --tool-format NAME or FILE."
        typer.echo(f"\nNo tools: {found.reason}.{step}")
    if found.format is not None:
        typer.echo(f"\nAn output in this format:\n\n{_example(found.format)}")


def _found(model: str, chat_template: str | None, values: dict[str, Any]) -> tuple[FoundFormat, Any]:
    """Return the format of a model, and its chat template."""
    from ferrum.formats.find import FoundFormat, chosen_format, find_format
    from ferrum.sources.other_tokenizer import text_source, with_tokenizer
    from ferrum.text.chat_template import ChatTemplate
    from ferrum.text.sandbox import template_of

    tool_format, models_dir = values.get("tool_format"), values.get("models_dir")
    if tool_format is not None:
        chosen_format(tool_format)  # fails before a download
    source = text_source(model, models_dir)
    if values.get("tokenizer") is not None:
        source = with_tokenizer(source, values["tokenizer"], models_dir)
    template = source.chat_template()
    if chat_template is not None:
        template = ChatTemplate(template_of(chat_template), source.special_tokens(), origin=chat_template)
    if template is None:
        return FoundFormat(None, "the model has no chat template"), None
    return find_format(template, source if chat_template is None else None, tool_format), template


def _rows(format: OutputFormat) -> list[tuple[str, str]]:
    reasoning, calls = format.reasoning, format.calls
    rows = [("reasoning", "none" if reasoning is None else f"{reasoning.open!r} to {reasoning.close!r}")]
    if format.content_open:
        rows.append(("content", f"{format.content_open!r} to {format.content_close!r}"))
    return rows if calls is None else rows + _call_rows(calls)


def _call_rows(calls: Calls) -> list[tuple[str, str]]:
    many = "several in a message" if calls.parallel else "one in a message"
    rows = [("calls", f"{calls.style} with arguments as {calls.arguments.style}, {many}")]
    if calls.section_open or calls.section_close:
        rows.append(("all calls", f"{calls.section_open!r} to {calls.section_close!r}"))
    rows.append(("a call", f"{calls.open!r} to {calls.close!r}"))
    if calls.aliases:
        rows.append(("also begun by", ", ".join(map(repr, calls.aliases))))
    return rows


def _example(format: OutputFormat) -> str:
    from ferrum.formats.writing import write_output

    many = format.calls is not None and format.calls.parallel
    calls = () if format.calls is None else _EXAMPLE if many else _EXAMPLE[:1]
    reasoning = None if format.reasoning is None else "The user wants the weather."
    return write_output(format, reasoning, None if calls else "It rains.", calls)


# ---- `ferrum quantize`: writes a packed model, which loads by mapping its file ----


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
    from ferrum.sources.open_model import NO_PROJECTOR, open_model
    from ferrum.sources.other_tokenizer import with_tokenizer

    wanted = adapters_to_merge(lora or ())
    source = open_model(model, models_dir=models_dir, mmproj=NO_PROJECTOR)
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
