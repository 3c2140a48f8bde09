"""Model names and downloads, against a fake hub on this machine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from huggingface_hub import constants, snapshot_download
from huggingface_hub.utils import close_session

from fake_hub import FakeRepo, hub_of
from ferrum.core.errors import CheckpointError, ConfigError, HubUnreachable, ModelGated, ModelNotFound, Unsupported
from ferrum.sources.hub import BUILT_IN, pull, resolve_model
from ferrum.sources.local_models import list_models

SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
CONFIG = json.dumps({"architectures": ["LlamaForCausalLM"], **dict.fromkeys(SIZES, 2), "head_dim": 2}).encode()
WEIGHTS = bytes(range(256)) * 400
FILES = {
    "config.json": CONFIG,
    "model.safetensors": WEIGHTS,
    "tokenizer.model": b"tokens",
    "chat_template.jinja": b"{{ messages }}",
    "additional_chat_templates/tools.jinja": b"{{ tools }}",
    "pytorch_model.bin": b"a pickle",
    "consolidated.safetensors": WEIGHTS,
    "onnx/config.json": CONFIG,
    "README.md": b"words",
}
FETCHED = {
    "config.json",
    "model.safetensors",
    "tokenizer.model",
    "chat_template.jinja",
    "additional_chat_templates/tools.jinja",
}


@pytest.fixture
def hub(tmp_path, monkeypatch):
    repos = {
        "maker/model": FakeRepo(dict(FILES)),
        "maker/gated": FakeRepo(dict(FILES), gated=True),
        "maker/pickles": FakeRepo({"config.json": CONFIG, "pytorch_model.bin": b"a pickle"}),
    }
    with hub_of(repos, tmp_path, monkeypatch) as hub:
        yield hub


def names_in(path):
    return {str(each.relative_to(path)) for each in path.rglob("*") if each.is_file()}


def test_download_contains_the_needed_files_and_no_pickles(hub):
    path = resolve_model("maker/model")
    assert names_in(path) == FETCHED
    assert (path / "model.safetensors").read_bytes() == WEIGHTS


def test_pooling_of_an_embedding_model_is_fetched(hub):
    modules = json.dumps([{"path": "1_Pooling", "type": "Pooling"}]).encode()
    hub.repos["maker/vectors"] = FakeRepo(FILES | {"modules.json": modules, "1_Pooling/config.json": b"{}"})
    path = resolve_model("maker/vectors")
    assert names_in(path) == FETCHED | {"modules.json", "1_Pooling/config.json"}
    assert resolve_model("maker/vectors", offline=True) == path


def test_second_call_downloads_nothing(hub):
    first = resolve_model("maker/model")
    before = len(hub.seen("GET /maker"))
    assert resolve_model("maker/model") == first
    assert len(hub.seen("GET /maker")) == before


@pytest.mark.parametrize("how", ["argument", "environment", "hub down"])
def test_cached_model_works_without_the_hub(hub, monkeypatch, how):
    path = resolve_model("maker/model")
    hub.requests.clear()
    if how == "environment":
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        close_session()
    if how == "hub down":
        hub.status = 503
    assert resolve_model("maker/model", offline=True if how == "argument" else None) == path
    assert how == "hub down" or not hub.requests


@pytest.mark.parametrize("without", ["LICENSE", "model.safetensors"])
def test_files_that_are_not_read_may_be_missing_from_the_cache(hub, without):
    hub.repos["maker/model"] = FakeRepo({**FILES, "LICENSE": b"words"})
    path = Path(snapshot_download("maker/model", allow_patterns=[name for name in FILES if name != without]))
    hub.status = 503
    if without == "LICENSE":
        assert resolve_model("maker/model") == path == resolve_model("maker/model", offline=True)
        return
    for offline in (None, True):
        with pytest.raises(HubUnreachable, match="not complete"):
            resolve_model("maker/model", offline=offline)


def test_offline_model_that_is_not_cached_is_an_error(hub, monkeypatch):
    with pytest.raises(HubUnreachable, match=r"maker/model.*offline") as caught:
        resolve_model("maker/model", offline=True)
    assert caught.value.param == "model"
    assert caught.value.status == 503
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    close_session()
    with pytest.raises(HubUnreachable, match="offline"):
        resolve_model("maker/model")


def test_dropped_connection_is_resumed(hub, monkeypatch):
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 100)
    hub.break_after, hub.breaks = {"model.safetensors": 1000}, 1
    path = resolve_model("maker/model")
    assert (path / "model.safetensors").read_bytes() == WEIGHTS
    assert any(request.endswith("bytes=1000-") for request in hub.requests)


def test_broken_download_is_finished_by_the_next_call(hub):
    hub.break_after, hub.breaks = {"model.safetensors": 0}, 1000
    with pytest.raises(HubUnreachable, match="did not finish"):
        resolve_model("maker/model")
    with pytest.raises(HubUnreachable):
        resolve_model("maker/model", offline=True)
    hub.breaks = 0
    assert (resolve_model("maker/model") / "model.safetensors").read_bytes() == WEIGHTS


def test_revision_by_argument_and_by_name(hub):
    path = resolve_model("maker/model", revision="v1.0")
    assert resolve_model("maker/model@v1.0") == path
    with pytest.raises(ModelNotFound, match=r"no revision 'v9'") as caught:
        resolve_model("maker/model@v9")
    assert caught.value.param == "revision"
    with pytest.raises(ConfigError):
        resolve_model("maker/model@v1.0", revision="main")


def test_unknown_model_error_suggests_similar_names(hub):
    resolve_model("maker/model")
    with pytest.raises(ModelNotFound, match=r"did you mean maker/model\?") as caught:
        resolve_model("maker/modle")
    assert caught.value.status == 404
    with pytest.raises(ModelNotFound, match=f"did you mean {BUILT_IN}"):
        resolve_model("ferrum-tinny")


def test_gated_model_error_says_what_to_do(hub):
    with pytest.raises(ModelGated, match="accept its terms") as caught:
        resolve_model("maker/gated")
    assert caught.value.status == 403


def test_pickled_model_is_rejected_without_download(hub):
    with pytest.raises(CheckpointError, match="no safetensors"):
        resolve_model("maker/pickles")
    assert not any("pytorch_model.bin" in request for request in hub.seen("GET"))


@pytest.mark.parametrize(
    ("config", "kind", "message"),
    [
        ({"architectures": ["MambaForCausalLM"]}, Unsupported, "MambaForCausalLM"),
        ({"rope_scaling": {"type": "spiral"}}, Unsupported, "spiral"),
        ({"quantization_config": {"quant_method": "torchao"}}, Unsupported, "torchao"),
        ({"hidden_size": None}, CheckpointError, "hidden_size"),
        (None, CheckpointError, r"'maker/other' has no config\.json"),
    ],
)
def test_unsupported_model_is_rejected_before_its_weights_are_fetched(hub, config, kind, message):
    files = {name: data for name, data in FILES.items() if name != "config.json"}
    if config is not None:
        files["config.json"] = json.dumps(json.loads(CONFIG) | config).encode()
    hub.repos["maker/other"] = FakeRepo(files)
    for _ in range(2):
        with pytest.raises(kind, match=message):
            pull("maker/other")
    assert not any("safetensors" in request for request in hub.requests)
    hub.repos["maker/other"] = FakeRepo(dict(FILES))  # its owner has repaired it
    assert names_in(pull("maker/other").path) == FETCHED


def test_unreachable_hub_is_an_error(hub, monkeypatch):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(HubUnreachable):
        resolve_model("maker/model")


@pytest.mark.parametrize(
    "name",
    [
        "",
        "a/b/c",
        "../../no-such-folder",
        "maker/mo del",
        "maker/model@",
        "maker/model@../x",
        "maker/..",
        "-x/y--z",
        "a" * 200 + "/b",
        "a" * 300 + "/b",
        "a" * 5000,
        "~nobody-of-that-name/model",
        "nul\0/model",
        "/proc/self/fd/model",
        "/proc/self/task/model",
    ],
)
def test_invalid_ids_never_reach_the_hub(hub, name):
    with pytest.raises(ModelNotFound):
        resolve_model(name)
    assert not hub.requests


def test_directory_takes_precedence_over_the_hub(hub, tmp_path, monkeypatch):
    (tmp_path / "maker" / "model").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert resolve_model("maker/model").samefile(tmp_path / "maker" / "model")
    assert not hub.requests
    with pytest.raises(ConfigError):
        resolve_model("maker/model", revision="main")
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(ModelNotFound, match="neither a directory"):
        resolve_model(str(tmp_path / "model.safetensors"))
    with pytest.raises(ModelNotFound, match=r"did you mean .*model"):
        resolve_model(str(tmp_path / "maker" / "modell"))


def test_list_contains_built_in_and_cached_models(hub):
    assert BUILT_IN in [model.name for model in list_models()]
    pulled = pull("maker/model")
    assert pulled in list_models()
    assert pulled.family == "LlamaForCausalLM"
    assert pulled.nbytes == sum(len(FILES[name]) for name in FETCHED)
    with pytest.raises(CheckpointError):
        pull("maker/pickles")
    assert {model.name for model in list_models()} == {BUILT_IN, "maker/model"}
    for model in list_models():
        assert resolve_model(model.name, offline=True) == model.path


def test_incomplete_model_is_not_listed(hub):
    shards = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    index = json.dumps({"weight_map": {shard: shard for shard in shards}}).encode()
    files = {"config.json": CONFIG, "model.safetensors.index.json": index}
    hub.repos["maker/sharded"] = FakeRepo({**files, **{shard: WEIGHTS + shard.encode() for shard in shards}})
    hub.break_after, hub.breaks = {shards[1]: 0}, 1000
    with pytest.raises(HubUnreachable, match="did not finish"):
        resolve_model("maker/sharded")
    assert [model.name for model in list_models()] == [BUILT_IN]
    hub.breaks = 0
    assert pull("maker/sharded") in list_models()


def test_cache_path_that_is_a_file_is_named(hub, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "file"))
    with pytest.raises(ConfigError) as caught:
        list_models()
    assert caught.value.param == "HF_HUB_CACHE"


def test_environment_of_the_hub_is_used(hub, tmp_path):
    """In a separate process: the library reads the environment on import."""
    program = "from ferrum.sources.hub import resolve_model; print(resolve_model('maker/model'))"
    env = {**os.environ, "HF_HOME": str(tmp_path / "home"), "HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    env.pop("HF_HUB_CACHE", None)
    run = [sys.executable, "-c", program]
    online = subprocess.run(run, env=env, capture_output=True, text=True, check=True).stdout
    assert online.startswith(str(tmp_path / "home"))
    hub.requests.clear()
    offline = subprocess.run(run, env={**env, "HF_HUB_OFFLINE": "1"}, capture_output=True, text=True, check=True).stdout
    assert offline == online
    assert not hub.requests


@pytest.mark.parametrize("end", ["\n", "\r\n", " "])
def test_white_space_in_a_reference_is_ignored(hub, tmp_path, end):
    path = resolve_model("maker/model")
    [reference] = (tmp_path / "cache").glob("models--*/refs/main")
    reference.write_text(reference.read_text() + end)
    hub.status = 503
    assert resolve_model("maker/model") == path == resolve_model("maker/model", offline=True)
    assert [model.path for model in list_models() if model.name == "maker/model"] == [path]


@pytest.mark.parametrize("listed", [True, False])
def test_offline_cache_without_weights_is_named(hub, monkeypatch, listed):
    snapshot_download("maker/model", allow_patterns=["*.json", "*.jinja"])
    if not listed:  # older versions of the library keep no list of a model's files
        for trees in Path(constants.HF_HUB_CACHE).glob("models--*/trees"):
            shutil.rmtree(trees)
            monkeypatch.setattr("huggingface_hub._tree_cache._IN_MEMORY_TREE_CACHE", {})
    with pytest.raises(HubUnreachable, match="not complete in the local cache: it has no safetensors weights there"):
        resolve_model("maker/model", offline=True)


def test_directory_name_that_is_not_utf8_is_named(tmp_path):
    name = f"{tmp_path}/model\udcff"
    Path(name).mkdir()
    with pytest.raises(ModelNotFound, match="not a name in UTF-8"):
        resolve_model(name)


def test_built_in_model_needs_no_hub_library():
    program = (
        "import sys; from ferrum.sources.hub import resolve_model; resolve_model('ferrum-tiny');"
        "assert 'huggingface_hub' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
