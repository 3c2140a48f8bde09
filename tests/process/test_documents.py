"""Programs and commands of the README, the documents and examples/ run as they are written, against one server."""

from __future__ import annotations

import gc
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from document_blocks import Block, blocks
from ferrum.cli.main import app, execute
from ferrum.client.async_engine import AsyncEngine
from ferrum.models.families import FAMILIES, load_families
from serve_kit import serving
from source_tree import REPOSITORY

URL = "http://127.0.0.1:8000"
EXAMPLES = sorted((REPOSITORY / "examples").glob("*.py"))
PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
DOCUMENTS = [path for path in PAGES if any(block.language for block in blocks(path))]
SEEING = "SmolVLM-256M-Instruct"
ONLY_PARSED = ("serve", "chat", "launch", "bench")
"""Commands that run until they are stopped, or for minutes."""


def parse(arguments: list[str]) -> None:
    """Parse a command and its options as the command line does; typer raises for what does not exist."""
    command: Any = typer.main.get_command(app)
    parent = command.make_context("ferrum", arguments)
    while hasattr(command, "resolve_command"):
        name, command, arguments = command.resolve_command(parent, arguments)
        context = command.make_context(name, list(arguments), parent=parent)
        arguments = [*getattr(context, "_protected_args", ()), *context.args]
        parent = context


class Site:
    """A running server that records, and the folder it runs in."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.folder = folder

    def run_python(self, block: Block, names: dict[str, object]) -> None:
        code = compile(block.text.replace(URL, self.url), str(block.path), "exec")
        exec(code, names)

    def run_command(self, command: str) -> None:
        program, *arguments = shlex.split(command.replace(URL, self.url))
        if program == "ferrum" and arguments[0] in ONLY_PARSED:
            parse(arguments)
        elif program == "ferrum":
            assert execute(arguments) == 0, command
        elif program == "python":
            assert (REPOSITORY / arguments[0]) in EXAMPLES, command
        else:
            assert program == "curl", f"{command}: mark the block no-test, with a reason"
            done = subprocess.run([program, "--fail-with-body", *arguments], capture_output=True, text=True)
            assert done.returncode == 0, done.stdout


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    with serving(lambda: AsyncEngine("ferrum-tiny", record_dir=str(folder / "records"))) as served:
        yield Site(served.url, folder)


@pytest.fixture(scope="module")
def seeing_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A tiny model that sees, under the name of the one in the document, and a picture."""
    from image_models import picture, random_image, seeing_directory  # PyTorch

    folder, model = tmp_path_factory.mktemp("seeing"), str(seeing_directory("smolvlm"))
    (folder / "models").mkdir()
    (folder / "models" / SEEING).symlink_to(model)
    picture(random_image(61, 37)).save(folder / "cat.png")
    with serving(lambda: AsyncEngine(model), served_model_name=SEEING) as served:
        yield Site(served.url, folder)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.stem)
def test_blocks_of_document_run(path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    site: Site = request.getfixturevalue("seeing_site" if path.stem == "images" else "site")
    monkeypatch.chdir(site.folder)
    load_families()
    families = set(FAMILIES.names())
    names: dict[str, object] = {"__name__": "__main__"}
    for block in blocks(path):
        if block.exempt:
            continue
        if block.language == "python":
            site.run_python(block, names)
        elif block.language == "console":
            assert block.commands, f"{path}: a console block without a command"
            for command in block.commands:
                site.run_command(command)
    for added in set(FAMILIES.names()) - families:
        FAMILIES.pop(added)  # other tests compare all families
    names.clear()
    gc.collect()


@pytest.fixture
def keyed(site: Site, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Point the variables of OpenAI clients to a server that requires a key."""
    records = str(site.folder / "keyed")
    with serving(lambda: AsyncEngine("ferrum-tiny", record_dir=records), api_key="for-examples") as served:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{served.url}/v1")
        monkeypatch.setenv("OPENAI_API_KEY", "for-examples")
        yield


@pytest.mark.usefixtures("keyed")
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", [str(path)])
    runpy.run_path(str(path), run_name="__main__")
    printed = capsys.readouterr().out
    assert printed and (path.stem != "replay" or printed.endswith("same bits\n"))


def test_every_example_is_named_in_a_document() -> None:
    texts = "".join(path.read_text() for path in PAGES)
    assert [path.name for path in EXAMPLES if f"examples/{path.name}" not in texts] == []
