"""What makes a span special, and what a step's tables hold, has an effect or is refused wherever steps run.

A field that is added in one place and forgotten in another fails here; the message names the other place.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path

import pytest

from ferrum.core.step import SpanExtras
from ferrum.kernels.interface import StepTables
from source_tree import SOURCE

EXTRAS = tuple(each.name for each in fields(SpanExtras))
READ_BY_ALL = ("core/span_checks.py:refuse_span", "runtime/span_results.py")
"""What every executor runs: a refusal there, or a result from there, serves them all."""

SPAN_PLACES = {
    "core/step.py, a property of Span": ("core/step.py:Span",),
    "core/span_checks.py, the check of its type": ("core/span_checks.py:_wrong_extras",),
    "runtime/decoder_lm.py and what it runs steps with, an effect or a refusal": (
        *READ_BY_ALL,
        "runtime/decoder_lm.py",
        "runtime/step_passes.py",
    ),
    "verbs/llm_executor.py, an effect or a refusal": (*READ_BY_ALL, "verbs/llm_executor.py"),
}
TABLE_PLACES = {
    "kernels/reference, a use": (
        "kernels/reference/reference_kernels.py",
        "kernels/reference/reference_attention.py",
        "kernels/reference/reference_states.py",
    ),
    "kernels/cpu/native_kernels.py, an argument of the library or a use": ("kernels/cpu/native_kernels.py:begin",),
}
Reader = Callable[[Path], str]


def names_read(place: str, read: Reader) -> set[str]:
    """Return the attributes that a module reads, or one definition in it; properties of a class count as well."""
    path, _, inside = place.partition(":")
    tree = ast.parse(read(SOURCE / path))
    within = [
        node
        for node in ast.walk(tree)
        if not inside or (isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == inside)
    ]
    assert within, f"{place} is gone: name its new home here"
    found = [node for outer in within for node in ast.walk(outer)]
    attributes = {node.attr for node in found if isinstance(node, ast.Attribute)}
    return (
        attributes & {node.name for node in found if isinstance(node, ast.FunctionDef)}
        if inside == "Span"
        else attributes
    )


def forgotten(names: Sequence[str], places: dict[str, tuple[str, ...]], read: Reader = Path.read_text) -> list[str]:
    """Return each name with a place that does not know it."""
    known = {place: {name for part in parts for name in names_read(part, read)} for place, parts in places.items()}
    return [f"{name} is missing in {place}" for name in names for place in places if name not in known[place]]


def test_every_extra_of_a_span_is_known_everywhere() -> None:
    assert forgotten(EXTRAS, SPAN_PLACES) == []


def test_every_table_of_a_step_reaches_every_backend() -> None:
    assert forgotten(StepTables._fields, TABLE_PLACES) == []


@pytest.mark.parametrize("places", [SPAN_PLACES, TABLE_PLACES])
def test_a_planted_field_is_missing_in_every_place(places: dict[str, tuple[str, ...]]) -> None:
    assert forgotten(["planted"], places) == [f"planted is missing in {place}" for place in places]


@pytest.mark.parametrize("place", SPAN_PLACES)
def test_a_field_that_one_place_forgets_is_named_with_it(place: str) -> None:
    """The field `masks` gets a second name in the modules of one place."""
    homes = {SOURCE / part.partition(":")[0] for part in SPAN_PLACES[place] if part not in READ_BY_ALL}
    homes |= {SOURCE / "runtime/span_results.py"} if place.startswith(("runtime", "verbs")) else set()

    def planted(path: Path) -> str:
        return path.read_text().replace("masks", "other") if path in homes else path.read_text()

    assert f"masks is missing in {place}" in forgotten(EXTRAS, SPAN_PLACES, planted)
