"""`import ferrum` loads names lazily and imports no library."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import ferrum
from ferrum.client.engine_process import _PROGRAM

HEAVY = {
    *("numpy", "torch", "transformers", "tokenizers", "safetensors", "ml_dtypes", "jinja2", "huggingface_hub"),
    *("rich", "typer", "click", "fastapi", "starlette", "uvicorn", "pydantic", "asyncio", "multiprocessing"),
}


def modules_after(code: str) -> set[str]:
    """Return the modules that a new interpreter has loaded after running the code."""
    script = (
        f"import json, sys; before = set(sys.modules); {code}; print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


def loaded_after(code: str) -> set[str]:
    """Return the top-level ones of these modules."""
    return {name.partition(".")[0] for name in modules_after(code)}


def test_import_loads_no_library() -> None:
    assert loaded_after("import ferrum") & HEAVY == set()


def test_parameters_and_errors_load_no_library() -> None:
    assert loaded_after("from ferrum import RequestError, SamplingParams; SamplingParams()") & HEAVY == set()


def test_the_command_line_loads_no_numerics() -> None:
    numerics = {"numpy", "torch", "transformers", "tokenizers", "safetensors", "ml_dtypes", "jinja2", "huggingface_hub"}
    assert loaded_after("import ferrum.cli.main") & numerics == set()


def test_the_text_room_loads_no_library_before_use() -> None:
    modules = ", ferrum.text.".join(("chat_template", "detokenizer", "generation_config", "tokenizer"))
    loaded = loaded_after(f"import ferrum.text.{modules}")
    assert loaded & {"tokenizers", "jinja2", "numpy", "torch", "transformers"} == set()


def test_the_engine_process_loads_no_client() -> None:
    """What its command line imports, and what unpickles a recipe. The wall between both processes."""
    loads = "import ferrum.engine.engine_main, ferrum.engine.recipe, ferrum.runtime.load"
    assert "ferrum.engine.engine_main import child" in _PROGRAM
    assert {name for name in modules_after(loads) if name.startswith(("ferrum.client", "ferrum.server"))} == set()


def test_every_public_name_is_there() -> None:
    assert set(ferrum.__all__) <= set(dir(ferrum))
    for name in ferrum.__all__:
        assert getattr(ferrum, name) is getattr(import_module(ferrum._HOMES[name]), name)


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse(Path(ferrum.__file__).with_suffix(".pyi").read_text())
    typed = {
        alias.name: node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert typed == ferrum._HOMES


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nothing_like_it"):
        ferrum.nothing_like_it  # noqa: B018
