"""`ferrum plan`: what a model takes in memory, and what fits."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ferrum.cli.options import chosen, engine_fields, model_fields, with_options
from ferrum.cli.tables import print_table
from ferrum.core.memory_plan import size

if TYPE_CHECKING:
    from ferrum.core.config import EngineConfig
    from ferrum.runtime.load import ModelPlan

_HELD: Final = ("speculative", "swap_gib")
"""Options of an engine that something is held in memory for."""

PLAN_FIELDS: Final = [*model_fields(), *(field for field in engine_fields() if field.name in _HELD)]


@with_options(PLAN_FIELDS, "Model")
def plan(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A directory, a hub id, or ferrum-tiny.")],
    **options: Any,
) -> None:
    """Show the bytes that a model takes, and how many sequences of what length fit. Its weights are not read."""
    from ferrum.core.config import with_wide_steps
    from ferrum.engine.build import engine_config
    from ferrum.runtime.load import plan_model
    from ferrum.runtime.memory import available_memory

    config = engine_config(model, with_wide_steps(chosen(PLAN_FIELDS, options)))
    made = plan_model(config.model)
    beside = _beside(config, made)
    info, memory, context = made.info, made.traits.memory, made.traits.max_sequence_length
    total, available = memory.total + sum(beside.values()), available_memory()
    print_table(
        [
            ("model", f"{model} ({info.family}), {info.num_parameters:,} parameters in {info.dtype}"),
            ("context", f"{context:,} tokens"),
            ("weights", size(memory.weights)),
            ("KV per token", f"{ceil(memory.kv_per_token):,} B"),
            ("KV pool", f"{size(memory.kv_pool)} for {made.kv_capacity:,} tokens"),
            ("activations", f"{size(memory.activations)} ({memory.activation_row:,} B per token of a step)"),
            ("tables", size(memory.tables)),
            ("libraries", size(memory.libraries)),
            *((name, size(nbytes)) for name, nbytes in beside.items()),
            ("total", size(total)),
            ("available", size(available)),
        ]
    )
    if total > available:
        parts = {"weights": memory.weights, "KV pool": memory.kv_pool, "tables": memory.tables, **beside}
        largest = max(parts, key=parts.__getitem__)
        typer.echo(f"\nThis is {size(total - available)} too much; the largest part: {largest}.")
    typer.echo()
    fitting = [(f"{length:,}", f"{count:,}") for length, count in memory.fitting(context)]
    print_table([("LENGTH", "SEQUENCES THAT FIT"), *fitting])


def _beside(config: EngineConfig, target: ModelPlan) -> dict[str, int]:
    """Bytes that an engine holds beside its model, by what they are for."""
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
        # Tokenizers of a hub's models are not fetched for a plan.
        check_vocabularies(target.info, draft.info, lambda: 0)
        held["draft model"] = draft.traits.memory.own
    if config.swap_gib:
        held["swapped pages"] = config.swap_gib << 30
    return held
