"""Docstrings and comments name files, modules and definitions that exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from source_tree import MODULES, REPOSITORY, ROOMS, SOURCE, nodes

SPAN = re.compile(r"`([A-Za-z_][\w./-]*)`")
FILE = re.compile(r"[\w./-]+\.(?:py|cpp|hpp|md)")
PATHS = {".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): path for path in MODULES}
"""Files by the dotted names of their modules, below the package."""


def texts(source: str) -> Iterator[str]:
    """Yield the docstrings and the comments of a module."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value
    yield from re.findall(r"(?m)(?:^|\s)# (.*)$", source)


@cache
def definitions(path: Path) -> frozenset[str]:
    """Return the names that a module defines or imports, wherever in it."""
    return frozenset(
        name
        for node in nodes(path)
        for name in (getattr(node, field, None) for field in ("id", "name", "attr"))
        if name
    )


def exists(name: str) -> bool:
    """Return whether a file, or a module and what it defines, exists. Names of other things count as existing."""
    if FILE.fullmatch(name):
        return any((root / name).exists() for root in (SOURCE, REPOSITORY)) or any(SOURCE.rglob(name))
    parts = name.removeprefix("ferrum.").split(".")
    homes = [home for home in PATHS if home.rpartition(".")[2] == parts[0]]
    if parts[0] not in ROOMS and len(homes) == 1 and parts[1:] and parts[1][:1].isupper():
        parts = [*homes[0].split("."), *parts[1:]]  # a class by its module's own name
    if parts[0] not in ROOMS or not parts[1:]:
        return True
    lengths = [length for length in range(2, len(parts) + 1) if ".".join(parts[:length]) in PATHS]
    return bool(lengths) and set(parts[lengths[-1] :]) <= definitions(PATHS[".".join(parts[: lengths[-1]])])


def broken_pointers(source: str) -> list[str]:
    return [name for text in texts(source) for name in SPAN.findall(text) if not exists(name)]


def test_names_of_modules_and_files_exist() -> None:
    broken = {str(path.relative_to(SOURCE)): broken_pointers(path.read_text()) for path in MODULES}
    assert {name: spans for name, spans in broken.items() if spans} == {}


def test_planted_broken_pointers_are_found() -> None:
    source = (
        '"""See `server.validation` and `core/no_file.py`."""\nx = 1  # as `step_plan.NoPlan` and `core.step.Span` do\n'
    )
    assert broken_pointers(source) == ["server.validation", "core/no_file.py", "step_plan.NoPlan"]
