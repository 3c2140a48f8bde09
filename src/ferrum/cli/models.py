"""`ferrum list` and `ferrum pull`: models on this machine, and downloads from the hub."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ferrum.cli.tables import print_table
from ferrum.core.memory_plan import size

if TYPE_CHECKING:
    from ferrum.runtime.hub import LocalModel


def list_models() -> None:
    """List the models that load without a network: the built-in one and those in the hub's cache."""
    from ferrum.runtime import hub

    print_table([("MODEL", "SIZE", "FAMILY", "DIRECTORY"), *map(_row, hub.list_models())])


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
    from ferrum.runtime import hub

    print_table([_row(hub.pull(model, revision=revision))])


def _row(model: LocalModel) -> tuple[str, str, str, str]:
    return model.name, size(model.nbytes), model.family or "unknown", str(model.path)
