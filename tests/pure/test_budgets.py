"""The house rules that a parser can hold: who imports whom, how long things are, and that models are data."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import ferrum

SOURCE = Path(ferrum.__file__).parent
MODULES = sorted(SOURCE.rglob("*.py"))
REPOSITORY = Path(__file__).parents[2]

ROOMS = (
    "core", "cache", "scheduler", "text", "kernels", "quant", "nn", "models",
    "sampling", "speculative", "runtime", "engine", "bench", "server", "cli",
)  # fmt: skip
WITHOUT_ARRAYS = {"core", "cache", "scheduler", "text"}
OPAQUE_ARRAYS = {"nn", "models"}


def room_of(path: Path) -> str | None:
    parts = path.relative_to(SOURCE).parts
    return parts[0] if len(parts) > 1 else None


def imports(path: Path) -> Iterator[str]:
    """Dotted names of all that a module imports, wherever in it, for types only or not."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_every_folder_is_a_room():
    folders = {path.name for path in SOURCE.iterdir() if path.is_dir()} - {"__pycache__", "assets"}
    assert folders <= set(ROOMS)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_up_the_list_only(path):
    room = room_of(path)
    if room is None:
        return
    for name in imports(path):
        parts = name.split(".")
        if parts[0] == "ferrum" and len(parts) > 1 and parts[1] in ROOMS:
            assert ROOMS.index(parts[1]) <= ROOMS.index(room), f"{room} imports {name}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_arrays_and_torch_stay_in_their_rooms(path):
    roots = {name.split(".")[0] for name in imports(path)}
    assert not roots & {"torch", "transformers", "triton"}
    if room_of(path) in WITHOUT_ARRAYS | OPAQUE_ARRAYS:
        assert not roots & {"numpy", "ml_dtypes"}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_files_and_functions_keep_their_budgets(path):
    text = path.read_text()
    assert text.count("\n") < 400
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            assert node.end_lineno - node.lineno < 60, f"{node.name} is too long"


def family_names() -> set[str]:
    """Names by which a family could be told: its file's, its architecture's."""
    files = {path.stem for path in (SOURCE / "models").glob("*.py")}
    parts = {"__init__", "config", "decoder", "families", "names", "rope", "spec"}
    return files - parts


def test_no_decision_reads_a_family_name():
    """No comparison, match or membership test names a family: a family is data."""
    families = family_names()
    assert {"llama", "qwen3"} <= families
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
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


def test_no_decision_reads_an_error_text():
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Compare):
                assert not any(
                    isinstance(call, ast.Call) and ast.unparse(call).startswith("str(error") for call in ast.walk(node)
                ), f"{path}:{node.lineno} reads an error's text"


def test_importing_the_package_is_light():
    """In a fresh interpreter: no torch, no tokenizers, nothing of the server's."""
    import subprocess

    heavy = ["torch", "transformers", "fastapi", "uvicorn", "tokenizers", "jinja2", "rich", "typer", "huggingface_hub"]
    code = f"import sys, ferrum; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_nothing_committed_names_a_path_of_a_machine():
    for path in [*MODULES, *(REPOSITORY / "tests").rglob("*.py"), *(REPOSITORY / "docs").rglob("*.md")]:
        assert "/" + "work/" not in path.read_text(), path
