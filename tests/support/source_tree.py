"""The repository's sources as a parser sees them, each file parsed once for all tests that ask."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import ferrum

SOURCE = Path(ferrum.__file__).parent
REPOSITORY = Path(__file__).parents[2]
MODULES = sorted(SOURCE.rglob("*.py"))
"""The package itself."""
TESTS = sorted((REPOSITORY / "tests").rglob("*.py"))
TOOLS = sorted(
    path for folder in ("training", "bench", "examples", ".ci") for path in (REPOSITORY / folder).rglob("*.py")
)
ROOMS = (
    "core", "contract", "cache", "scheduler", "text", "guides", "formats", "grammar", "images", "kernels", "quant",
    "nn", "models", "sampling", "speculative", "sources", "runtime", "engine", "client", "bench", "server", "cli",
    "verbs",
)  # fmt: skip
"""Rooms in the order of imports: each imports those before it only. No path of the product enters the last one."""
WITHOUT_ARRAYS = {"core", "contract", "cache", "scheduler", "text", "guides", "formats", "grammar"}
NATIVE = sorted(path for path in (REPOSITORY / "native").rglob("*") if path.suffix in (".cpp", ".hpp", ".txt"))


@cache
def nodes_in(text: str) -> tuple[ast.AST, ...]:
    """All nodes of a module's text, outer ones first."""
    return tuple(ast.walk(ast.parse(text)))


def nodes(path: Path) -> tuple[ast.AST, ...]:
    """All nodes of a module, outer ones first."""
    return nodes_in(path.read_text())
