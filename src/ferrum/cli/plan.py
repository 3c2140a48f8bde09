"""`ferrum plan`: the memory a model needs, and how many sequences fit."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ferrum.cli.options import MODEL_HELP, chosen, engine_fields, model_fields, with_options
from ferrum.cli.tables import print_table
from ferrum.core.memory_plan import size

if TYPE_CHECKING:
    from ferrum.core.config import EngineConfig
    from ferrum.core.memory_plan import StatePart
    from ferrum.runtime.load import ModelPlan

_HELD: Final = ("speculative", "swap_gib", "lora", "lora_gib")
"""Options of an engine that take memory."""

PLAN_FIELDS: Final = [*model_fields(), *(field for field in engine_fields() if field.name in _HELD)]


@with_options(PLAN_FIELDS, "Model")
def plan(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP)],
    **options: Any,
) -> None:
    """Show the memory a model needs and how many sequences fit, without reading its weights."""
    from ferrum.client.build import engine_config
    from ferrum.core.config import with_wide_steps
    from ferrum.runtime.load import plan_model
    from ferrum.runtime.memory import available_memory

    config = engine_config(model, with_wide_steps(chosen(PLAN_FIELDS, options)))
    made = plan_model(config.model, config.reserved_bytes)
    extra = _extra(config, made)
    info, memory, context = made.info, made.traits.memory, made.traits.max_sequence_length
    total, available = memory.total + sum(extra.values()), available_memory()
    print_table(
        [
            ("model", f"{model} ({info.family}), {info.num_parameters:,} parameters in {_formats(made.formats)}"),
            ("context", f"{context:,} tokens"),
            ("weights", size(memory.weights)),
            ("KV per token", f"{ceil(memory.kv_per_token):,} B"),
            ("KV pool", f"{size(memory.kv_pool)} for {made.kv_capacity:,} tokens"),
            *_states(memory.states),
            ("activations", f"{size(memory.activations)} ({memory.activation_row:,} B per token of a step)"),
            ("tables", size(memory.tables)),
            ("libraries", size(memory.libraries)),
            *((name, size(nbytes)) for name, nbytes in extra.items()),
            ("total", size(total)),
            ("available", size(available)),
        ]
    )
    for note in made.traits.notes:
        typer.echo(f"\nNote: {note}")
    if total > available:
        parts = {"weights": memory.weights, "KV pool": memory.kv_pool, "tables": memory.tables, **extra}
        largest = max(parts, key=parts.__getitem__)
        typer.echo(f"\nThis exceeds the available memory by {size(total - available)}; the largest part: {largest}.")
    typer.echo()
    fitting = [(f"{length:,}", f"{count:,}") for length, count in memory.fitting(context)]
    print_table([("LENGTH", "SEQUENCES THAT FIT"), *fitting])


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
    return held
