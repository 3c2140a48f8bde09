"""Models that are on the machine already: every name that `ferrum list` shows runs, without a hub."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from command_kit import Outcome, command_line
from fake_hub import CACHE_VARIABLES, CLOSED, redirected
from ferrum import AsyncEngine
from ferrum.sources.gguf_model import GgufModel
from ferrum.sources.local_models import list_models
from model_caches import NAMES, fill_machine, model_bytes, write
from serve_kit import serving


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fill_machine(tmp_path_factory.mktemp("machine"))


@pytest.fixture
def ferrum(
    machine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., Outcome]]:
    with redirected(CLOSED, machine, monkeypatch):
        monkeypatch.chdir(machine)
        monkeypatch.setenv("FERRUM_MODELS_DIR", str(machine / "models"))
        yield command_line(capsys)


def test_the_list_has_what_is_there(ferrum: Callable[..., Outcome], machine: Path) -> None:
    code, out, err = ferrum("list")
    assert (code, err) == (0, "")
    assert len(out.splitlines()) == len(NAMES) + 1
    models = list_models()
    assert {model.name for model in models} == NAMES
    assert all(model.nbytes == len(model_bytes()) for model in models if model.family == "GGUF")


SAMPLE = {"maker/small-GGUF:q4_k_m", "pub/repo:Q8_0", "llama3.2:1b", "org/flat_GGUF:Q8_0", "inner/deep:Q8_0", "packed"}
"""Names that are also served in quick runs: one of each place."""

SHORT = ("--kv-capacity", "128", "--max-tokens", "2")


@pytest.mark.parametrize("name", sorted(NAMES))
def test_every_name_of_the_list_runs_and_plans(name: str, ferrum: Callable[..., Outcome], machine: Path) -> None:
    code, out, err = ferrum("plan", name, *SHORT[:2])
    assert code == 0 and "weights" in out, err
    code, out, err = ferrum("run", name, "abcab", *SHORT, "--ignore-eos", "--tokenizer", tokenizer(machine))
    assert code == 0 and "2 tokens" in err, err


@pytest.mark.parametrize(
    "name", [name if name in SAMPLE else pytest.param(name, marks=pytest.mark.soak) for name in sorted(NAMES)]
)
def test_every_name_of_the_list_chats_and_is_served(
    name: str, ferrum: Callable[..., Outcome], machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("abcab\n"))
    code, _, err = ferrum("chat", name, *SHORT, "--temperature", "0")
    assert code == 0 or "has no chat template" in err, err
    with serving(lambda: AsyncEngine(name, kv_capacity=128, tokenizer=tokenizer(machine))) as server:
        body = {"model": server.http.get("/v1/models").json()["data"][0]["id"], "prompt": "abcab", "max_tokens": 1}
        assert server.post("/v1/completions", **body).status_code == 200


def tokenizer(machine: Path) -> str:
    """Return a directory with the tokenizer of the tiny models."""
    directory = machine / "tokenizer"
    if not directory.exists():
        source = GgufModel(machine / "models" / "top-Q8_0.gguf")
        files = {name: source.read_file(name) or b"" for name in ("tokenizer.json", "tokenizer_config.json")}
        write(directory, files)
    return str(directory)


def test_a_fresh_process_lists_runs_and_plans_without_a_hub(machine: Path, tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if name not in (*CACHE_VARIABLES, "HF_HUB_CACHE")}
    env |= {"HOME": str(machine / "home"), "HF_HOME": str(tmp_path), "HF_ENDPOINT": CLOSED}
    (tmp_path / "hub").symlink_to(machine / "cache")
    option = ["--models-dir", str(machine / "models")]

    def run(*arguments: str) -> str:
        command = [sys.executable, "-m", "ferrum", *arguments, *option]
        done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60)
        return done.stdout

    names = {line.split("  ")[0] for line in run("list").splitlines()[1:]}
    assert names == NAMES
    assert run("run", "maker/beside-GGUF", "abcab", "--max-tokens", "1", "--temperature", "0")
    assert "in q8_0" in run("plan", "llama3.2:1b")
