"""Writes the maps of modules from their docstrings: the rooms in docs/architecture.md, and tests/support/README.md.

    python tests/support/module_map.py

Run it after adding, renaming or merging modules. A test compares both documents.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from source_tree import REPOSITORY, ROOMS, SOURCE, WITHOUT_ARRAYS, nodes

DOCUMENT = REPOSITORY / "docs" / "architecture.md"
SUPPORT = REPOSITORY / "tests" / "support"
INDEX = SUPPORT / "README.md"
BEGIN, END = "<!-- map: written by tests/support/module_map.py -->\n", "<!-- end of the map -->\n"


def first_line(path: Path) -> str:
    """Return the first paragraph of a module's docstring as one line."""
    module = nodes(path)[0]
    assert isinstance(module, ast.Module)
    text = ast.get_docstring(module) or ""
    return text.partition("\n\n")[0].replace("\n", " ")


def modules(folder: Path) -> Iterator[str]:
    """Yield a line for each module of a folder, and for each folder in it, by name."""
    for path in sorted(folder.rglob("*.py")):
        name = path.relative_to(folder).with_suffix("").as_posix()
        if name != "__init__":
            yield f"- `{name.removesuffix('__init__')}`: {first_line(path)}"


def room_map() -> str:
    """Return the heading, the purpose and the modules of every room."""
    lines = []
    for room in ROOMS:
        star = " *" if room in WITHOUT_ARRAYS else ""
        lines += [f"### `{room}/`{star}", first_line(SOURCE / room / "__init__.py"), "", *modules(SOURCE / room), ""]
    return "\n".join(lines)


def with_map(text: str) -> str:
    """Return a document with the map in place."""
    before, _, rest = text.partition(BEGIN)
    return before + BEGIN + room_map() + END + rest.partition(END)[2]


def support_index() -> str:
    """Return the index of what tests share."""
    head = ["# What tests share", "One line a module, written by `module_map.py` from docstrings.", ""]
    return "\n".join([*head, *modules(SUPPORT), ""])


if __name__ == "__main__":
    DOCUMENT.write_text(with_map(DOCUMENT.read_text()))
    INDEX.write_text(support_index())
