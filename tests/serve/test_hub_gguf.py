"""GGUF files of the hub: names, choice, download and listing, against a fake hub."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fake_hub import FakeHub, FakeRepo, hub_of
from ferrum.core.errors import FerrumError, HubUnreachable, ModelNotFound
from ferrum.runtime.hub import list_models, resolve_model
from ferrum.runtime.hub_gguf import HubFile, choose, hub_file, tag_of
from ferrum.runtime.load import load_executor
from gguf_twin import write_gguf
from tiny import Case, directory_of

SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
TINY = Case("llama-hub-gguf", "LlamaConfig", SIZES)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    files = {}
    for kind, tag in (("Q8_0", "Q8_0"), ("Q4_0", "Q4_K_M")):
        write_gguf(directory_of(TINY), tmp_path / "model.gguf", kind)
        files[f"model-{tag}.gguf"] = (tmp_path / "model.gguf").read_bytes()
    files |= {"mmproj-F16.gguf": b"GGUF", "README.md": b"words"}
    with hub_of({"maker/model-GGUF": FakeRepo(files)}, tmp_path, monkeypatch) as hub:
        yield hub


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("maker/model-GGUF", "model-Q4_K_M.gguf"),
        ("maker/model-GGUF:Q8_0", "model-Q8_0.gguf"),
        ("maker/model-GGUF:q8_0@v1.0", "model-Q8_0.gguf"),
        ("maker/model-GGUF/model-Q8_0.gguf", "model-Q8_0.gguf"),
    ],
)
def test_only_the_file_that_a_name_means_is_fetched(hub: FakeHub, name: str, file: str) -> None:
    path = resolve_model(name)
    assert path.name == file
    assert not any(other in request for request in hub.seen("GET") for other in ("README", "mmproj"))
    assert sum(".gguf" in request for request in hub.seen("GET")) == 1
    with load_executor(str(path), kv_capacity=64) as executor:
        assert executor.info.vocab_size == 131
    seen = len(hub.requests)
    assert resolve_model(name, offline=True) == path and len(hub.requests) == seen


def test_cached_files_are_listed_by_tag(hub: FakeHub) -> None:
    for tag in ("Q8_0", "Q4_K_M"):
        resolve_model(f"maker/model-GGUF:{tag}")
    assert {"maker/model-GGUF:Q8_0", "maker/model-GGUF:Q4_K_M"} <= {model.name for model in list_models()}


def test_a_tag_that_is_missing_names_those_that_are_there(hub: FakeHub) -> None:
    with pytest.raises(ModelNotFound) as caught:
        resolve_model("maker/model-GGUF:Q5_K_M")
    assert "maker/model-GGUF:Q8_0" in str(caught.value) and "mmproj" not in str(caught.value)


def test_a_file_that_is_not_cached_needs_the_hub(hub: FakeHub) -> None:
    resolve_model("maker/model-GGUF:Q8_0")
    with pytest.raises(FerrumError) as caught:
        resolve_model("maker/model-GGUF:Q4_K_M", offline=True)
    assert isinstance(caught.value, ModelNotFound | HubUnreachable)


def test_parts_of_a_split_model_belong_together() -> None:
    files = ["a/m-Q4_K_M-00002-of-00002.gguf", "a/m-Q4_K_M-00001-of-00002.gguf", "m-Q8_0.gguf"]
    assert choose(HubFile("r/m", tag="Q4_K_M"), files) == files[1::-1]
    assert choose(HubFile("r/m"), files) == files[1::-1]
    assert choose(HubFile("r/m", file="a/m-Q4_K_M-00001-of-00002.gguf"), files) == files[1::-1]


@pytest.mark.parametrize(("model", "tag"), [("a/m-7B.Q4_K_M.gguf", "Q4_K_M"), ("Phi-3-mini-q4.gguf", "q4")])
def test_tags_follow_the_last_mark(model: str, tag: str) -> None:
    assert tag_of(model) == tag


@pytest.mark.parametrize("name", ["maker/model", "maker/../x.gguf", "maker/model:", "a/b/c", "/maker/x.gguf"])
def test_other_names_mean_no_file(name: str) -> None:
    assert hub_file(name) is None
