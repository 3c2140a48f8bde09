"""GGUF files of the hub: names, choice, download and listing, against a fake hub."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants
from huggingface_hub.utils import close_session

from fake_hub import CLOSED, FakeHub, FakeRepo, hub_of
from ferrum.core.config import ModelConfig
from ferrum.core.errors import FerrumError, HubUnreachable, ModelNotFound
from ferrum.runtime.load import plan_model
from ferrum.sources.hub import pull, resolve_model
from ferrum.sources.hub_files import hub_name
from ferrum.sources.local_models import list_models
from ferrum.sources.open_model import open_model
from ferrum.sources.tower_files import read_tower
from ferrum.verbs.load_executor import load_executor
from gguf_twin import write_gguf
from projector_files import seeing_gguf
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


@pytest.mark.parametrize("how", ["open", "pull", "none"])
def test_the_projector_of_a_model_is_fetched_with_it(
    hub: FakeHub, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"mmproj-F16.gguf": seeing_gguf("smolvlm").with_name("mmproj-model-f32.gguf").read_bytes()}
    files |= {"mmproj-F32.gguf": b"GGUF", "vl-Q8_0.gguf": seeing_gguf("smolvlm").read_bytes()}
    hub.repos["maker/vl"] = FakeRepo(files)
    if how == "pull":
        pull("maker/vl")
    for _ in range(2):
        source = open_model("maker/vl", mmproj="none" if how == "none" else None)
        assert source.may_see() == (how != "none")
        monkeypatch.setattr(constants, "ENDPOINT", CLOSED)  # then from the cache
    fetched = {request.split()[1].rpartition("/")[2] for request in hub.seen("GET") if ".gguf" in request}
    assert fetched == {"vl-Q8_0.gguf", *(() if how == "none" else ("mmproj-F16.gguf",))}
    if how != "none":
        assert read_tower(source).family == "idefics3"


def test_cached_files_are_listed_by_tag(hub: FakeHub) -> None:
    for tag in ("Q8_0", "Q4_K_M"):
        resolve_model(f"maker/model-GGUF:{tag}")
    assert {"maker/model-GGUF:Q8_0", "maker/model-GGUF:Q4_K_M"} <= {model.name for model in list_models()}


CONFIGS = {
    "of llama.cpp's makers": b'{"model_type": "llama"}',
    "of the original model": (directory_of(TINY) / "config.json").read_bytes(),
    "of an unknown architecture": b'{"architectures": ["NewForCausalLM"]}',
    "damaged": b"{",
}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_a_repository_with_a_configuration_and_gguf_files_is_its_preferred_file(
    hub: FakeHub, config: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.repos["maker/both"] = FakeRepo({**hub.repos["maker/model-GGUF"].files, "config.json": config})
    for _ in range(2):
        assert resolve_model("maker/both").name == "model-Q4_K_M.gguf"
        assert plan_model(ModelConfig(model="maker/both", kv_capacity=64)).info.vocab_size == 131
        monkeypatch.setattr(constants, "ENDPOINT", CLOSED)  # then from the cache
    assert sum(".gguf" in request for request in hub.seen("GET")) == 1


def test_safetensors_weights_take_precedence_over_gguf_files(hub: FakeHub) -> None:
    weights = {path.name: path.read_bytes() for path in directory_of(TINY).iterdir()}
    hub.repos["maker/both"] = FakeRepo({**hub.repos["maker/model-GGUF"].files, **weights})
    assert resolve_model("maker/both").is_dir()
    assert not any(".gguf" in request for request in hub.seen("GET"))


@pytest.mark.parametrize(
    "how", ["closed port", "status 503", "argument", "HF_HUB_OFFLINE", "gated since", "gone since"]
)
@pytest.mark.parametrize("name", ["maker/model-GGUF", "maker/model-GGUF:q8_0", "maker/model-GGUF/model-Q8_0.gguf"])
def test_a_cached_file_runs_without_the_hub(hub: FakeHub, name: str, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = resolve_model(name)
    hub.status = 503 if how == "status 503" else None
    hub.repos["maker/model-GGUF"].gated = how == "gated since"
    if how == "closed port":
        monkeypatch.setattr(constants, "ENDPOINT", CLOSED)
    if how == "gone since":
        hub.repos.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", how == "HF_HUB_OFFLINE")
    close_session()
    assert resolve_model(name, offline=True if how == "argument" else None) == path


def test_pull_of_a_cached_file_says_that_the_hub_is_down(hub: FakeHub, caplog: pytest.LogCaptureFixture) -> None:
    pulled = pull("maker/model-GGUF:Q8_0")
    assert not caplog.text
    hub.status = 503
    assert pull("maker/model-GGUF:Q8_0") == pulled and "the hub cannot be reached" in caplog.text


def test_a_tag_that_is_missing_names_those_that_are_there(hub: FakeHub) -> None:
    with pytest.raises(ModelNotFound) as caught:
        resolve_model("maker/model-GGUF:Q5_K_M")
    assert "maker/model-GGUF:Q8_0" in str(caught.value) and "mmproj" not in str(caught.value)


def test_a_file_that_is_not_cached_needs_the_hub(hub: FakeHub) -> None:
    resolve_model("maker/model-GGUF:Q8_0")
    with pytest.raises(FerrumError) as caught:
        resolve_model("maker/model-GGUF:Q4_K_M", offline=True)
    assert isinstance(caught.value, ModelNotFound | HubUnreachable)


@pytest.mark.parametrize("name", ["maker/../x.gguf", "maker/model:", "a/b/c", "/maker/x.gguf"])
def test_other_names_mean_nothing_on_the_hub(name: str) -> None:
    assert hub_name(name) is None
