"""`ferrum plan`: what a model takes in memory, and what fits."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ferrum.cli.options import chosen, model_fields, with_options
from ferrum.cli.tables import print_table, size


@with_options(model_fields(), "Model")
def plan(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A directory, a hub id, or ferrum-tiny.")],
    **options: Any,
) -> None:
    """Show the bytes that a model takes, and how many sequences of what length fit."""
    from ferrum.engine.build import engine_config
    from ferrum.engine.progress import loading_bar
    from ferrum.runtime.load import build_executor

    config = engine_config(model, chosen(model_fields(), options)).model
    with loading_bar(model) as progress, build_executor(config, progress=progress) as executor:
        info, memory, context = executor.info, executor.memory_plan, executor.capabilities().max_sequence_length
        per_token = sum(part.bytes_per_token for part in memory.pool)
        print_table(
            [
                ("model", f"{model} ({info.family}), {info.num_parameters:,} parameters in {info.dtype}"),
                ("context", f"{context:,} tokens"),
                ("weights", size(memory.weights)),
                ("KV per token", f"{per_token:,} B"),
                ("KV pool", f"{size(memory.kv_pool)} for {executor.kv_capacity():,} tokens"),
                ("activations", f"{size(memory.activations)} ({memory.activation_row:,} B per token of a step)"),
                ("tables", size(memory.tables)),
                ("libraries", size(memory.libraries)),
                ("total", size(memory.total)),
            ]
        )
        typer.echo()
        fitting = [(f"{length:,}", f"{memory.max_sequences(length):,}") for length in lengths(context)]
        print_table([("LENGTH", "SEQUENCES THAT FIT"), *fitting])


def lengths(context: int) -> list[int]:
    """Powers of two from 256 up to the context, and the context."""
    powers = [1 << exponent for exponent in range(8, context.bit_length()) if 1 << exponent < context]
    return [*powers, context]
