"""What names of models mean: their spellings, places and precedence, and the errors of names that mean none."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from command_kit import Outcome, command_line
from fake_hub import CLOSED, redirected
from ferrum.core.errors import ConfigError, ModelNotFound
from ferrum.sources.hub import BUILT_IN, resolve_model
from ferrum.sources.local_models import list_models
from ferrum.sources.model_folders import FoundModel, find
from model_caches import UNRELATED, cache_ollama, cache_repo, fill_machine, model_bytes, write


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


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("maker/beside-GGUF", "x.Q4_K_M.gguf"),
        ("MAKER/small-GGUF:q6_k", None),
        ("maker/small-GGUF:Q4_K_XL", "small-UD-Q4_K_XL.gguf"),
        ("pub/repo", "f-Q4_K_M.gguf"),
        ("PUB/repo:q8_0", "f-Q8_0.gguf"),
        ("me/own", "sha256-"),
        ("llama3.2", "sha256-"),
        ("org/flat_GGUF", "org_flat_GGUF_flat-Q8_0.gguf"),
        ("inner/deep", "x-Q8_0.gguf"),
        ("inner", "x-Q8_0.gguf"),
        ("models/inner/deep:q8_0", "x-Q8_0.gguf"),
        ("maker/branch@v1.0", "x-Q8_0.gguf"),
        ("maker/half:Q4_0", None),
        ("maker/half", None),
        ("adapted", None),
        ("broken:1", None),
        ("projector", None),
    ],
)
def test_other_spellings_of_names(name: str, file: str | None, ferrum: Callable[..., Outcome]) -> None:
    if file is None:
        with pytest.raises(ModelNotFound):
            resolve_model(name)
    else:
        assert resolve_model(name).name.startswith(file)


def test_names_mean_paths_then_models_dir_then_the_hub_then_other_programs(
    ferrum: Callable[..., Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name, file = "pub/repo:Q8_0", "pub/repo/any-Q8_0.gguf"
    studio = resolve_model(name)
    hub = cache_repo(tmp_path / "cache", "pub/repo", {"any-Q8_0.gguf": model_bytes()}) / "any-Q8_0.gguf"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    listed = {model.path: model.name for model in list_models()}
    assert (listed[hub], listed[studio]) == (name, str(studio)), "a name that is taken becomes the path"
    assert resolve_model(name) == hub
    write(tmp_path / "folder", {file: model_bytes()})
    assert resolve_model(name, models_dir="folder") == Path("folder", file)
    listed = {model.path: model.name for model in list_models("folder")}
    assert listed[Path("folder", file)] == name and listed[hub] == str(hub)
    write(tmp_path, {file: model_bytes()})
    assert resolve_model(name, models_dir="folder") == Path(file)
    for model in list_models("folder"):
        assert resolve_model(model.name, models_dir="folder").samefile(model.path)


def test_folders_of_other_programs_are_where_their_settings_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_bytes()
    with redirected(CLOSED, tmp_path, monkeypatch):
        write(tmp_path / "xdg/llama.cpp", {"alone-Q8_0.gguf": model})
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
        write(tmp_path / "home/.cache/lm-studio/models", {"a/b/old-Q8_0.gguf": model})
        write(tmp_path / "studio", {"models/a/c/x-Q8_0.gguf": model})
        write(tmp_path / "home", {".lmstudio-home-pointer": f"{tmp_path / 'studio'}\n".encode()})
        cache_ollama(tmp_path / "ollama", "library/a/latest", {"model": model})
        monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama"))
        found = {"alone-Q8_0.gguf", "a/b:Q8_0", "a/c:Q8_0", "a:latest"}
        assert {each.name for each in list_models()} == {BUILT_IN, *found}
        write(tmp_path / "home/Library/Caches/llama.cpp", {"mac-Q8_0.gguf": model})
        with monkeypatch.context() as patched:
            patched.setattr("sys.platform", "darwin")
            assert resolve_model("mac-Q8_0.gguf").name == "mac-Q8_0.gguf"
        settings = json.dumps({"downloadsFolder": str(tmp_path / "chosen")}).encode()
        write(tmp_path, {"studio/settings.json": settings, "chosen/a/d/x-Q8_0.gguf": model})
        cache_repo(tmp_path / "newer", "maker/new", {"x-Q8_0.gguf": model})
        monkeypatch.setenv("LLAMA_CACHE", str(tmp_path / "newer"))
        found = {"maker/new:Q8_0", "a/b:Q8_0", "a/d:Q8_0", "a:latest"}
        assert {each.name for each in list_models()} == {BUILT_IN, *found}
        assert resolve_model("maker/new").name == "x-Q8_0.gguf"


@pytest.mark.parametrize("door", ["option", "variable"])
def test_a_models_directory_that_is_none_is_refused_by_name(
    door: str, ferrum: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    if door == "variable":
        monkeypatch.setenv("FERRUM_MODELS_DIR", "/no/such/folder")
    option = ["--models-dir", "/no/such/folder"] if door == "option" else []
    named = "FERRUM_MODELS_DIR" if door == "variable" else "--models-dir"
    for words in (["list"], ["run", "some-model", "x"], ["plan", "some-model"]):
        code, _, err = ferrum(*words, *option)
        assert code == 2 and named in err and "/no/such/folder" in err
    with pytest.raises(ConfigError):
        list_models("/no/such/folder")
    if door == "option":
        assert ferrum("plan", BUILT_IN, *option)[0] == 2, "refused even where it would not be used"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("{models}/absent.gguf", "there is no such file or directory"),
        ("{models}/top-Q8.gguf", "{models}/top-Q8_0.gguf"),
        ("models/top-Q8.gguf", "models/top-Q8_0.gguf"),
        ("{models}/importance-Q8_0.gguf", "is an importance matrix, not a model; did you mean {models}"),
        ("{models}/projector-F16.gguf", "is a projector of images, not a model"),
        ("{models}/lora-F16.gguf", "is an adapter, not a model"),
        ("{models}/packed/LICENSE.python", "neither a directory nor a GGUF file"),
        ("no models", "'no models' holds no complete model, only mmproj-F16.gguf"),
        ("{models}/none:Q8_0", "there is no such file or directory"),
        ("models:Q5_K_M", "choose one: models/inner/deep/x-Q8_0.gguf, models/my models/x-Q8_0.gguf, models/top"),
        ("qwen3", "neither a directory nor organisation/name on the hub"),
        ("llama3", "did you mean llama3.2:1b"),
        ("maker/small-GGUF:Q8_0", "choose one: maker/small-GGUF/a-Q8_0.gguf, maker/small-GGUF/b/a (copy)"),
        ("maker/small-GGUF:Q5_K_M", "'maker/small-GGUF:Q5_K_M' is not in the local cache, which has maker/small-GGUF:"),
    ],
)
def test_a_name_without_a_model_is_explained(
    name: str, said: str, ferrum: Callable[..., Outcome], machine: Path
) -> None:
    folder = str(machine / "models")
    for command in ("run", "plan"):
        code, _, err = ferrum(command, name.format(models=folder))
        assert code == 2 and err.startswith("ferrum: MODEL") and err.count("\n") == 1
        assert said.format(models=folder) in err


def test_a_directory_with_gguf_files_is_the_preferred_one(
    tmp_path: Path, ferrum: Callable[..., Outcome], machine: Path
) -> None:
    model = model_bytes()
    write(tmp_path, {"one/any.GGUF": model, **{f"one/{name}": data for name, data in UNRELATED.items()}})
    write(tmp_path, {"two/x-Q8_0.gguf": model, "two/sub/x-Q4_K_M.gguf": model, "two/config.json": b"{}"})
    write(tmp_path, {"few/x-Q5_0.gguf": model, "few/x-Q6_K.gguf": model})
    assert resolve_model(str(tmp_path / "one")).name == "any.GGUF"
    assert resolve_model(str(tmp_path / "two")).name == "x-Q4_K_M.gguf"
    assert resolve_model(str(tmp_path / "few:q6_k")).name == "x-Q6_K.gguf"
    code, _, err = ferrum("run", str(tmp_path / "few"), "x")
    assert code == 2 and f"choose one: {tmp_path}/few:Q5_0, {tmp_path}/few:Q6_K" in err
    blob = write(tmp_path, {"blob": model}) / "blob"
    assert ferrum("run", str(blob), "abcab", "--max-tokens", "1", "--kv-capacity", "64")[0] == 0


@pytest.mark.parametrize(
    "name", ["my models/tiny one", "my models/x-Q8_0.gguf", "maker/small-GGUF/b/a (copy) @1-Q8_0.gguf"]
)
def test_a_name_with_a_space_is_no_prompt(name: str, ferrum: Callable[..., Outcome]) -> None:
    _, _, err = ferrum("run", name, "--max-tokens", "1", "--kv-capacity", "128")
    assert "built-in model" not in err
    assert "completed by the built-in model" in ferrum("run", "def add(a, b):", "--max-tokens", "1")[2]


def test_pull_says_that_the_hub_was_not_reached(
    ferrum: Callable[..., Outcome], caplog: pytest.LogCaptureFixture
) -> None:
    code, out, _ = ferrum("pull", "maker/beside-GGUF:Q8_0")
    assert code == 0 and "x.Q8_0.gguf" in out
    assert "the hub cannot be reached" in caplog.text and "may be old" in caplog.text
    code, _, err = ferrum("pull", "maker/none:Q8_0")
    assert code == 2 and "is not in the local cache, and the hub is unreachable ([Errno" in err


def test_a_plan_names_formats(ferrum: Callable[..., Outcome]) -> None:
    assert "parameters in q8_0\n" in ferrum("plan", "top-Q8_0.gguf")[1]
    (line,) = [
        line for line in ferrum("plan", BUILT_IN, "--quantize", "q4_k_m")[1].splitlines() if "parameters" in line
    ]
    shares = dict(part.rsplit(" ", 1) for part in line.partition(" parameters in ")[2].split(", "))
    assert {"q6_k", "q8_0"} <= set(shares) and "int4" not in shares
    assert 98 <= sum(int(share.rstrip("%")) for share in shares.values()) <= 102


def test_name_without_a_tag_means_the_latest_or_preferred_or_only_one() -> None:
    models = [
        FoundModel(name, (Path(name),)) for name in ("a:Q8_0", "a:Q4_K_M", "b:x", "b:latest", "c:1b", "d:1", "d:2")
    ]
    found = {name: find(name, models) for name in "abcd"}
    assert found == {"a": Path("a:Q4_K_M"), "b": Path("b:latest"), "c": Path("c:1b"), "d": None}
