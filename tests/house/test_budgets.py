"""The house rules that a parser can hold: who imports whom, how long things are, and that models are data.

Each rule is one test, which names all that break it.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from source_tree import MODULES, NATIVE, REPOSITORY, ROOMS, SOURCE, TESTS, TOOLS, WITHOUT_ARRAYS, nodes

PYTHON = [*MODULES, *TESTS, *TOOLS]

MAX_LINES = 600
"""Files near 100 lines are the rule. A longer one reads from top to bottom under headings."""
MAX_FUNCTION_LINES = 60
SERVER_LAYERS = (("common",), ("chat",), ("anthropic", "openai", "responses"), ("tasks",), ("ollama",), ("deploy",))
"""Folders of the server: each may import those of earlier layers. Ollama's routes serve other tasks, too."""
DIALECTS = ("anthropic", "openai", "responses", "ollama")
"""Folders of the server with a dialect of chats."""

OPAQUE_ARRAYS = {"nn", "models"}


def room_of(path: Path, source: Path = SOURCE) -> str | None:
    parts = path.relative_to(source).parts
    return parts[0] if len(parts) > 1 else None


def imports(path: Path) -> Iterator[str]:
    """Dotted names of all that a module imports, wherever in it, for types only or not."""
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def upward_imports(modules: Sequence[Path], source: Path) -> Iterator[str]:
    """Imports of a room that stands further down the list."""
    for path in modules:
        room = room_of(path, source)
        for package, _, rest in (name.partition(".") for name in imports(path)):
            target = rest.partition(".")[0]
            if room and package == "ferrum" and target in ROOMS and ROOMS.index(target) > ROOMS.index(room):
                yield f"{path.relative_to(source)} imports {rest}"


def module_name(path: Path) -> str:
    return ".".join(("ferrum", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")


def imported_modules(path: Path, known: Collection[str]) -> set[str]:
    """Modules that a module runs when it is imported or called; `ferrum` itself, which imports on demand, aside."""
    checks = (node for node in nodes(path) if isinstance(node, ast.If))
    types = {each for node in checks if ast.unparse(node.test) == "TYPE_CHECKING" for each in ast.walk(node)}
    found = set()
    for node in nodes(path):
        if isinstance(node, ast.ImportFrom) and node not in types and node.module:
            found |= {
                f"{node.module}.{a.name}" if f"{node.module}.{a.name}" in known else node.module for a in node.names
            }
        elif isinstance(node, ast.Import) and node not in types:
            found |= {alias.name for alias in node.names}
    return (found & {*known}) - {"ferrum"}


def circle(graph: Mapping[str, Collection[str]]) -> Sequence[str]:
    """Modules of which each imports the next, and the last one the first; empty if there are none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def shared_names(modules: Sequence[Path], source: Path) -> dict[str, set[str]]:
    """Base names that stand in several rooms, and these rooms."""
    homes: dict[str, set[str]] = {}
    for path in modules:
        if path.stem != "__init__" and (room := room_of(path, source)):
            homes.setdefault(path.stem, set()).add(room)
    return {name: rooms for name, rooms in homes.items() if len(rooms) > 1}


def test_every_folder_is_a_room() -> None:
    """Folders without modules do not count: Git leaves caches of moved ones behind."""
    assert {room_of(path) for path in MODULES} - {None} == set(ROOMS)


def test_imports_point_up_the_list_only() -> None:
    assert list(upward_imports(MODULES, SOURCE)) == []


def test_no_module_imports_itself_over_others() -> None:
    """Imports inside functions count, imports for types do not."""
    planted = {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}
    assert set(circle(planted)) == {"a", "b", "c"}
    names = {module_name(path): path for path in MODULES}
    assert circle({name: imported_modules(path, names) - {name} for name, path in names.items()}) == []


def test_no_base_name_stands_in_two_rooms() -> None:
    """A file search by name finds one module."""
    assert shared_names(MODULES, SOURCE) == {}


def test_only_the_choice_of_a_backend_names_one() -> None:
    """Everything else asks `Kernels`. `cpu/library.py` describes the machine, whatever computes."""
    naming = {
        str(path.relative_to(SOURCE))
        for path in MODULES
        if room_of(path) != "kernels"
        for name in imports(path)
        if name.endswith(".ReferenceKernels")
        or (name.startswith("ferrum.kernels.cpu.") and not name.startswith("ferrum.kernels.cpu.library."))
    }
    assert naming == {"runtime/backend.py"}


def test_planted_violations_are_found(tmp_path: Path) -> None:
    planted = {
        "cache/pool.py": "from ferrum.scheduler.queues import Waiting\n",
        "engine/pool.py": "from ferrum.cache.pool import PagePool\n",
    }
    for name, text in planted.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    modules = [tmp_path / name for name in planted]
    assert list(upward_imports(modules, tmp_path)) == ["cache/pool.py imports scheduler.queues.Waiting"]
    assert shared_names(modules, tmp_path) == {"pool": {"cache", "engine"}}


def test_arrays_and_torch_stay_in_their_rooms() -> None:
    astray = []
    for path in MODULES:
        forbidden = {"torch", "transformers", "triton"}
        if room_of(path) in WITHOUT_ARRAYS | OPAQUE_ARRAYS:
            forbidden |= {"numpy", "ml_dtypes"}
        if path.name == "launched_ranks.py":
            forbidden -= {"torch"}  # where processes of torchrun meet, within a function
        found = forbidden & {name.partition(".")[0] for name in imports(path)}
        astray += [f"{path.relative_to(SOURCE)} imports {name}" for name in found]
    assert astray == []


def test_files_keep_their_budget() -> None:
    assert len(NATIVE) > 20
    lines = {str(path.relative_to(REPOSITORY)): path.read_text().count("\n") for path in [*PYTHON, *NATIVE]}
    assert {name: count for name, count in lines.items() if count >= MAX_LINES} == {}


def test_folders_of_the_server_import_earlier_layers_only() -> None:
    folders = {path.parent.name for path in (SOURCE / "server").glob("*/__init__.py")}
    assert folders == {each for layer in SERVER_LAYERS for each in layer}
    astray = []
    for place, layer in enumerate(SERVER_LAYERS):
        for folder in layer:
            others = folders - {folder} - {each for earlier in SERVER_LAYERS[:place] for each in earlier}
            refused = tuple(f"ferrum.server.{each}." for each in others)
            for path in (SOURCE / "server" / folder).glob("*.py"):
                astray += [
                    f"{path.name} imports {name}" for name in imports(path) if refused and name.startswith(refused)
                ]
    assert astray == []


def test_no_dialect_imports_another() -> None:
    """Each turns its bodies into the one `Ask`, and the one `Turn` into its replies."""
    for dialect in DIALECTS:
        others = tuple(f"ferrum.server.{each}." for each in DIALECTS if each != dialect)
        names = {name for path in (SOURCE / "server" / dialect).glob("*.py") for name in imports(path)}
        assert [name for name in names if name.startswith(others)] == []
        assert {"ferrum.server.chat.ask.Ask", "ferrum.server.chat.turn.ReplyBuilder"} <= names


def test_functions_keep_their_budget() -> None:
    lines = {
        f"{path.relative_to(REPOSITORY)}: {node.name}": (node.end_lineno or 0) - node.lineno
        for path in PYTHON
        for node in nodes(path)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert {name: count for name, count in lines.items() if count >= MAX_FUNCTION_LINES} == {}


def family_names() -> set[str]:
    """Return the names of families: those of their files."""
    files = {path.stem for path in (SOURCE / "models").glob("*.py")}
    parts = {
        "__init__",
        "builder",
        "config_reader",
        "decoder",
        "families",
        "gguf_architecture",
        "gguf_keys",
        "gguf_names",
        "tensor_names",
        "rope",
        "spec",
    }
    return files - parts


def test_no_decision_reads_a_family_name() -> None:
    """No comparison, match or membership test names a family: a family is data."""
    families = family_names()
    assert {"llama", "qwen3"} <= families
    for path in MODULES:
        for node in nodes(path):
            if not isinstance(node, ast.Compare | ast.Match | ast.If | ast.IfExp):
                continue
            test = node.test if isinstance(node, ast.If | ast.IfExp) else node
            named = {
                constant.value.lower()
                for constant in ast.walk(test)
                if isinstance(constant, ast.Constant) and isinstance(constant.value, str)
            }
            found = {name for name in named for family in families if name.startswith(family)}
            assert not found, f"{path}:{node.lineno} decides by {found}"


def test_no_decision_reads_an_error_text() -> None:
    for path in MODULES:
        for node in nodes(path):
            if isinstance(node, ast.Compare):
                assert not any(
                    isinstance(call, ast.Call) and ast.unparse(call).startswith("str(error") for call in ast.walk(node)
                ), f"{path}:{node.lineno} reads an error's text"


def test_the_environment_is_read_in_one_place() -> None:
    names = ("environ", "environb", "getenv")
    readers = {
        path for path in MODULES for node in nodes(path) if isinstance(node, ast.Attribute) and node.attr in names
    }
    assert readers == {SOURCE / "core" / "config.py"}


def test_nothing_committed_names_a_path_of_a_machine() -> None:
    texts = [*PYTHON, *NATIVE, *(REPOSITORY / "docs").rglob("*.md"), *REPOSITORY.glob("*.md")]
    assert [path for path in texts if "/" + "work/" in path.read_text()] == []
