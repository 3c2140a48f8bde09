"""Writes docs/map.md and tests/support/README.md from the docstrings of modules and the imports of tests.

    python tests/support/module_map.py                # both documents
    python tests/support/module_map.py ROOM_OR_MODULE # the test files that import it, for pytest

Run it after adding, renaming or merging modules or tests. A test compares both documents.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

import ferrum
from source_tree import MODULES, REPOSITORY, ROOMS, SOURCE, TESTS, WITHOUT_ARRAYS, nodes

DOCUMENT = REPOSITORY / "docs" / "map.md"
SUPPORT = REPOSITORY / "tests" / "support"
INDEX = SUPPORT / "README.md"
BEGIN, END = "<!-- map: written by tests/support/module_map.py -->\n", "<!-- end of the map -->\n"
FIRST = 3
"""Test files named for a module."""
COMMON = 40
"""A test that imports more modules than this says little about each of them."""

Users = Mapping[str, frozenset[str]]
"""Modules (`cache/page_table`) by test file (`tests/pure/test_page_table.py`)."""


def first_line(path: Path) -> str:
    """Return the first paragraph of a module's docstring as one line."""
    module = nodes(path)[0]
    assert isinstance(module, ast.Module)
    text = ast.get_docstring(module) or ""
    return text.partition("\n\n")[0].replace("\n", " ")


def _short(dotted: str) -> str:
    return dotted.removeprefix("ferrum.").replace(".", "/")


def _imported(path: Path) -> set[str]:
    """Return the modules that a file imports, by name or through a public name of `ferrum`."""
    known = {each.relative_to(SOURCE).with_suffix("").as_posix() for each in MODULES}
    homes: Mapping[str, str] = vars(ferrum)["_HOMES"]
    found = set[str]()
    for node in nodes(path):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [each.name for each in node.names]
            found |= {_short(node.module), *(_short(f"{node.module}.{name}") for name in names)}
            if node.module == "ferrum":
                found |= {_short(homes[name]) for name in names if name in homes}
        elif isinstance(node, ast.Import):
            found |= {_short(each.name) for each in node.names}
    return found & known


@cache
def modules_by_test() -> Users:
    """Return the modules that each test file imports itself."""
    files = [path for path in TESTS if path.stem.startswith("test_")]
    return {path.relative_to(REPOSITORY).as_posix(): frozenset(_imported(path)) for path in files}


def tests_of(module: str, users: Users) -> list[str]:
    """Return the test files that import a module, those that say most about it first.

    First come tests whose names have a word of the module's, then tests that import few other modules.
    """
    words = set(module.rpartition("/")[2].split("_"))

    def distance(test: str) -> tuple[bool, int, str]:
        return not words & set(Path(test).stem.split("_")), len(users[test]), test

    return sorted((test for test, imported in users.items() if module in imported), key=distance)


def _shared(test: str) -> set[str]:
    """Return the modules that a test reaches through `tests/support`."""
    path, kits = REPOSITORY / test, {each.stem: each for each in SUPPORT.glob("*.py")}
    named = {node.module for node in nodes(path) if isinstance(node, ast.ImportFrom) and node.module in kits}
    return {module for name in named if name for module in _imported(kits[name])}


def room_of_test(test: str, imported: frozenset[str]) -> str | None:
    """Return the room that a test is about: its name says so, or most of its imports are of it.

    Of two rooms with equally many imports it is the later one. What a test imports from kits counts if it imports
    nothing itself except types of `core`.
    """
    named = next((room for room in ROOMS if f"{Path(test).stem}_".startswith(f"test_{room}_")), None)
    for names in (imported, _shared(test)):
        counts = Counter(room for name in names if (room := name.partition("/")[0]) in ROOMS)
        if named is not None or counts.keys() - {"core"}:
            counts.pop("core", None)
            return named or max(counts, key=lambda room: (counts[room], ROOMS.index(room)))
    return "core" if imported else None


def tests_by_room(users: Users) -> dict[str, list[str]]:
    """Return the test files about each room. Each file is about one room at most."""
    found: dict[str, list[str]] = {room: [] for room in ROOMS}
    for test, imported in sorted(users.items()):
        if (room := room_of_test(test, imported)) is not None:
            found[room].append(test)
    return found


def modules(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield name and first line of each module of a folder, and of each folder in it."""
    for path in sorted(folder.rglob("*.py")):
        name = path.relative_to(folder).with_suffix("").as_posix()
        if name != "__init__":
            yield name.removesuffix("__init__"), first_line(path)


def _with_tests(room: str, name: str, users: Users) -> str:
    tests = [Path(each).stem for each in tests_of(f"{room}/{name}", users) if len(users[each]) <= COMMON]
    if not tests:
        return ""
    more = f" and {len(tests) - FIRST} more" if len(tests) > FIRST else ""
    return f" Tests: {', '.join(tests[:FIRST])}{more}."


def _folders(tests: Iterable[str]) -> str:
    """Return test files by their folders, as a sentence."""
    by_folder: dict[str, list[str]] = {}
    for test in tests:
        by_folder.setdefault(str(Path(test).parent), []).append(Path(test).stem.removeprefix("test_"))
    return "; ".join(f"`{folder}`: {', '.join(names)}" for folder, names in by_folder.items())


def room_map() -> str:
    """Return the heading, the purpose, the tests and the modules of every room."""
    lines, users = [], modules_by_test()
    tests = tests_by_room(users)
    for room in ROOMS:
        star = " *" if room in WITHOUT_ARRAYS else ""
        lines += [f"## `{room}/`{star}", first_line(SOURCE / room / "__init__.py"), ""]
        lines += [f"Tests: {_folders(tests[room])}.", ""] if tests[room] else []
        lines += [f"- `{name}`: {text}{_with_tests(room, name, users)}" for name, text in modules(SOURCE / room)]
        lines += [""]
    return "\n".join(lines)


def with_map(text: str) -> str:
    """Return a document with the map in place."""
    before, _, rest = text.partition(BEGIN)
    return before + BEGIN + room_map() + END + rest.partition(END)[2]


def support_index() -> str:
    """Return the index of what tests share."""
    head = ["# What tests share", "One line a module, written by `module_map.py` from docstrings.", ""]
    return "\n".join([*head, *(f"- `{name}`: {text}" for name, text in modules(SUPPORT)), ""])


def named_tests(name: str) -> list[str]:
    """Return the tests about a room, or those that import a module, which its base name suffices to name."""
    users = modules_by_test()
    if name in ROOMS:
        return tests_by_room(users)[name]
    paths = {f"{room}/{each}" for room in ROOMS for each, _ in modules(SOURCE / room)}
    return [test for path in sorted(paths) if path.rpartition("/")[2] == name for test in tests_of(path, users)]


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(*(test for name in sys.argv[1:] for test in named_tests(name)))
    else:
        DOCUMENT.write_text(with_map(DOCUMENT.read_text()))
        INDEX.write_text(support_index())
