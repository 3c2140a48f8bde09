"""Lists that must have the same entries, and a sentence for each entry that one of them lacks."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, get_args, get_type_hints

import numpy as np

from ferrum.kernels.op_spec import OpSpec
from ferrum.quant.block_format import BlockFormat
from ferrum.quant.gguf_blocks import GgufType
from ferrum.quant.normal_floats import NORMAL_FLOATS
from ferrum.quant.zero_points import ZERO_POINTS

KEPT = {**ZERO_POINTS, "nf4": NORMAL_FLOATS}
OTHER_LAYOUTS = {"q4_128", "q4_m64", "q4_m128", "fp8", "nvfp4_scaled", *KEPT}
"""Formats of quantised directories, which are no types of GGUF."""

SCALES = {None: "whole", np.dtype(np.uint8): "unsigned_subs", np.dtype(np.int8): "signed_subs"}


def lacking(here: str, names: Collection[str], there: str, others: Collection[str]) -> Iterator[str]:
    """Yield a sentence for each name that stands here and not there."""
    yield from (f"{name} is in {here} but not in {there}" for name in names if name not in others)


def native_formats(text: str) -> dict[str, tuple[str, ...]]:
    """Return the lines of FERRUM_BLOCK_FORMATS by name."""
    lines = text.partition("#define FERRUM_BLOCK_FORMATS(X)")[2].partition("\n\n")[0]
    return {name: tuple(rest.split(", ")) for name, rest in re.findall(r"X\((\w+), ([^)]*)\)", lines)}


def native_tables(text: str) -> dict[str, tuple[int, ...]]:
    """Return the tables of integers in block_format.hpp by name."""
    found = re.findall(r"int8_t (\w+)\[16\] = \{([^}]*)\}", text)
    return {name: tuple(map(int, numbers.split(","))) for name, numbers in found}


def native_types(text: str) -> dict[str, tuple[str, int]]:
    """Return the format and the bytes of each type of blocks that the library lays out."""
    return {name: (format, int(size)) for name, format, size in re.findall(r'\{"(\w+)", Format::(\w+), (\d+),', text)}


def line_of(kind: BlockFormat, tables: Mapping[str, tuple[int, ...]]) -> tuple[str, ...]:
    """Return the line of FERRUM_BLOCK_FORMATS for a format of Python."""
    table = next((name for name, numbers in tables.items() if numbers == kind.table), "nullptr")
    numbers = kind.block, kind.group, kind.bits, kind.offset
    scales = "own" if kind.low else "floats" if kind.float8 else SCALES[kind.sub]
    wide = kind.scale != np.float16 and not kind.float8
    flags = str(kind.minima).lower(), f"Scales::{scales}", str(wide).lower()
    own = [str(kind.low.nbytes)] if kind.low else []
    return (*map(str, numbers), table, *flags, *own, *(["true"] if kind.output_scales else []))


def format_faults(
    formats: Mapping[str, BlockFormat],
    native: Mapping[str, tuple[str, ...]],
    tables: Mapping[str, tuple[int, ...]],
    types: Mapping[str, GgufType],
    laid_out: Mapping[str, tuple[str, int]],
) -> list[str]:
    """Return what the lists of formats and of GGUF types lack of one another."""
    ours, theirs = "quant/block_format.py", "native/src/weight_formats.hpp"
    found = [*lacking(ours, formats, theirs, native), *lacking(theirs, native, ours, formats)]
    needed = {name: line_of(formats[name], tables) for name in formats.keys() & native.keys()}
    found += (
        f"{name} differs: {theirs} needs {', '.join(line)}" for name, line in needed.items() if line != native[name]
    )
    gguf = formats.keys() - OTHER_LAYOUTS
    blocks = {name.upper(): (name, low.nbytes) for name, low in KEPT.items()}
    blocks |= {name: (kind.format or "", kind.nbytes) for name, kind in types.items()}
    found += lacking(ours, gguf, "quant/gguf_blocks.py", {kind.format for kind in types.values() if kind.format})
    found += lacking(ours, gguf | KEPT.keys(), "native/src/block_types.cpp", {name for name, _ in laid_out.values()})
    for name, own in laid_out.items():
        if blocks.get(name) != own:
            found.append(f"{name} in native/src/block_types.cpp differs from quant/gguf_blocks.py")
    return sorted(found)


def checked_operations(text: str) -> set[str]:
    """Return the operations that a module of checks calls on `kernels`."""
    calls = [node.func for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    return {
        each.attr
        for each in calls
        if isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name) and each.value.id == "kernels"
    }


def operation_faults(
    operations: Mapping[str, OpSpec], backends: Mapping[str, tuple[type, int]], checks: Mapping[str, Collection[str]]
) -> list[str]:
    """Return where a declared operation is missing or takes other operands.

    Args:
        operations: the declared ones.
        backends: by file, the class with a method for each operation, and whether results follow the operands (1).
        checks: by file, the names of the operations that it checks.
    """
    here, found = "kernels/operations.py", []
    for there, (owner, has_results) in backends.items():
        methods = {name: method for name in operations if callable(method := vars(owner).get(name))}
        found += lacking(here, operations, there, methods)
        for name, method in methods.items():
            expected = list(operations[name].operands)
            if _operands(method, len(expected) if has_results else None) != expected:
                found.append(f"{name} in {there} does not take the operands of {here}: {', '.join(expected)}")
    for there, names in checks.items():
        found += lacking(here, operations, there, names)
    return sorted(found)


def _operands(method: Callable[..., Any], count: int | None) -> list[str]:
    return list(inspect.signature(method).parameters)[1:][:count]


def rule_faults(parameters: Mapping[str, str], rules: Collection[str], native: Collection[str]) -> list[str]:
    """Return sampling parameters without a rule, rules without a parameter, and a backend's rules that are none.

    Args:
        parameters: the rule of each field of `SamplingParams`, as `room.name`.
        rules: names of the functions in `sampling/rules.py` that are applied.
        native: names of the fields of `Draw` that are rules.
    """
    params, ours = "core/params.py", "sampling/rules.py"
    claimed = {rule.removeprefix("sampling.") for rule in parameters.values() if rule.startswith("sampling.")}
    return sorted(
        [
            *lacking(params, claimed, ours, rules),
            *lacking(ours, rules, params, claimed),
            *lacking("kernels/services.py", native, ours, rules),
        ]
    )


def stored_kind_faults(kinds: Collection[type], records: Mapping[str, type]) -> list[str]:
    """Return what a layer may store that a record has no field for.

    Args:
        kinds: the shapes of what is stored.
        records: the records that list it, by file.
    """
    found = []
    for there, record in records.items():
        known = {kind for hint in get_type_hints(record).values() for kind in _types_in(hint)}
        found += lacking("core", {kind.__name__ for kind in kinds}, there, {kind.__name__ for kind in known & {*kinds}})
    return sorted(found)


def _types_in(hint: Any) -> set[Any]:
    """Return a type hint and all that it is built from."""
    parts = [part for each in get_args(hint) for part in (each if isinstance(each, list) else [each])]
    return {hint}.union(*map(_types_in, parts))
