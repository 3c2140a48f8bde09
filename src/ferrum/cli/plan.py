"""`ferrum plan`: what a model takes in memory, and what fits."""

from __future__ import annotations

from math import ceil
from typing import Annotated, Any, Final

import typer

from ferrum.cli.options import chosen, engine_fields, model_fields, with_options
from ferrum.cli.tables import print_table, size

PLAN_FIELDS: Final = [*model_fields(), *(field for field in engine_fields() if field.name == "speculative")]
"""Options that something is held in memory for."""


@with_options(PLAN_FIELDS, "Model")
def plan(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A directory, a hub id, or ferrum-tiny.")],
    **options: Any,
) -> None:
    """Show the bytes that a model takes, and how many sequences of what length fit."""
    from ferrum.engine.build import engine_config
    from ferrum.engine.progress import loading_bar
    from ferrum.engine.speculation import load_draft_model
    from ferrum.runtime.load import build_executor

    config = engine_config(model, chosen(PLAN_FIELDS, options))
    with loading_bar(model) as progress, build_executor(config.model, progress=progress) as executor:
        draft = load_draft_model(config, executor)
        drafting = 0 if draft is None else draft.memory_plan.own
        info, memory, context = executor.info, executor.memory_plan, executor.capabilities().max_sequence_length
        print_table(
            [
                ("model", f"{model} ({info.family}), {info.num_parameters:,} parameters in {info.dtype}"),
                ("context", f"{context:,} tokens"),
                ("weights", size(memory.weights)),
                ("KV per token", f"{ceil(memory.kv_per_token):,} B"),
                ("KV pool", f"{size(memory.kv_pool)} for {executor.kv_capacity():,} tokens"),
                ("activations", f"{size(memory.activations)} ({memory.activation_row:,} B per token of a step)"),
                ("tables", size(memory.tables)),
                ("libraries", size(memory.libraries)),
                *([] if draft is None else [("draft model", f"{size(drafting)}, its KV pool included")]),
                ("total", size(memory.total + drafting)),
            ]
        )
        typer.echo()
        fitting = [(f"{length:,}", f"{count:,}") for length, count in memory.fitting(context)]
        print_table([("LENGTH", "SEQUENCES THAT FIT"), *fitting])
