"""`ferrum list` and `ferrum pull`: models on this machine, and downloads from the hub."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ferrum.cli.options import ModelsDirectory
from ferrum.cli.tables import print_table
from ferrum.core.memory_plan import size

if TYPE_CHECKING:
    from ferrum.sources.local_models import LocalModel


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
