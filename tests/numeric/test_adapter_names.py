"""Adapters by name: directories, GGUF files, and repositories of the hub, also without a connection."""

from __future__ import annotations

from pathlib import Path

import pytest

from adapter_cases import ATTENTION, BASES
from adapter_kit import AdapterCase, adapted_twin, save
from adapter_writers import CONFIG, FILE, gguf_tensors, write_gguf_adapter
from fake_hub import CLOSED, FakeRepo, hub_of, redirected
from ferrum.core.config import ModelConfig
from ferrum.core.errors import CheckpointError, HubUnreachable, ModelGated, ModelNotFound
from ferrum.sources.adapters.adapter_file import AdapterFile
from ferrum.sources.adapters.open_adapter import open_adapter
from ferrum.sources.read_model import read_spec
from tiny import BASE, directory_of

CASE = AdapterCase("named", BASES["qwen3"], ATTENTION)


def opened(name: str) -> AdapterFile:
    return open_adapter(name, read_spec(ModelConfig(model=str(directory_of(CASE.model)))))


def repo_of(folder: Path) -> FakeRepo:
    """Return a repository with an adapter in both forms, and a pickle."""
    save(adapted_twin(CASE), folder)
    tensors = gguf_tensors(folder, "qwen3", {**BASE, **CASE.model.changes})
    write_gguf_adapter(folder / "a.gguf", "qwen3", tensors)
    files = {name: (folder / name).read_bytes() for name in (CONFIG, FILE, "a.gguf")}
    return FakeRepo({**files, "adapter_model.bin": b"pickle", "README.md": b"words"})


def test_adapters_of_the_hub_are_fetched_once_and_found_without_a_connection(tmp_path, monkeypatch) -> None:
    repos = {"org/lora": repo_of(tmp_path / "files")}
    local = opened(str(tmp_path / "files")).digest, opened(str(tmp_path / "files" / "a.gguf")).digest
    with hub_of(repos, tmp_path, monkeypatch) as hub:
        assert opened("org/lora").digest == local[0]
        assert opened("org/lora@v1.0").digest == local[0]
        assert opened("org/lora/a.gguf").digest == local[1]
        assert not [each for each in hub.requests if "adapter_model.bin" in each or "README" in each]
    with redirected(CLOSED, tmp_path, monkeypatch):
        assert opened("org/lora").digest == local[0]
        assert opened("org/lora/a.gguf").digest == local[1]
        with pytest.raises(HubUnreachable) as caught:
            opened("org/other")
    assert caught.value.param == "adapter"


def test_repositories_that_cannot_be_had_are_named(tmp_path, monkeypatch) -> None:
    repos = {
        "org/gated": FakeRepo({CONFIG: b"{}"}, gated=True),
        "org/pickle": FakeRepo({CONFIG: b'{"peft_type": "LORA"}'}),
    }
    with hub_of(repos, tmp_path, monkeypatch):
        for name, error in (("org/gated", ModelGated), ("org/none", ModelNotFound), ("org/none/a.gguf", ModelNotFound)):
            with pytest.raises(error) as caught:
                opened(name)
            assert caught.value.param == "adapter"
        with pytest.raises(CheckpointError, match=r"adapter_model\.bin"):
            opened("org/pickle")


@pytest.mark.parametrize("name", ["", "./nothing", "/nothing", "nothing", "a\0b", "org/lora/../x", "x" * 5000])
def test_names_that_mean_nothing_are_not_found(name: str) -> None:
    with pytest.raises(ModelNotFound) as caught:
        opened(name)
    assert caught.value.param == "adapter"


def test_other_files_and_directories_are_no_adapters(tmp_path) -> None:
    (tmp_path / "text.txt").write_text("words")
    for path in (tmp_path / "text.txt", tmp_path, directory_of(CASE.model)):
        with pytest.raises(CheckpointError, match=r"GGUF|adapter_config"):
            opened(str(path))
