"""`--tokenizer`: the tokenizer files of another place, for a GGUF file whose split rule is not known."""

from __future__ import annotations

import asyncio
import io
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFValueType
from huggingface_hub import constants

from fake_hub import FakeRepo, hub_of
from ferrum import LLM, AsyncEngine, SamplingParams
from ferrum.cli.main import execute
from ferrum.core.errors import CheckpointError, ConfigError, ModelNotFound, Unsupported
from ferrum.sources.gguf_model import GgufModel
from ferrum.sources.other_tokenizer import OtherTokenizer, with_tokenizer
from ferrum.text.generation_config import GenerationConfig
from gguf_twin import TOKENIZER, write_gguf
from serve_kit import serving
from tiny import Case, directory_of

WIDE: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
LLAMA = Case("llama-gguf", "LlamaConfig", {**WIDE, "head_dim": 32})
UNKNOWN = {**TOKENIZER, "tokenizer__ggml__pre": ("new-rule", GGUFValueType.STRING)}
GREEDY = SamplingParams(temperature=0.0, max_tokens=4)
IDS = [8, 2, 8]
"""Of "abcab"."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with `model.gguf`, whose split rule is not known, and `original/`, with its tokenizer."""
    folder = tmp_path_factory.mktemp("models")
    write_gguf(directory_of(LLAMA), folder / "model.gguf", **UNKNOWN)
    write_gguf(directory_of(LLAMA), folder / "known.gguf", **TOKENIZER)
    (folder / "original").mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / "original" / name).write_bytes(GgufModel(folder / "known.gguf").read_file(name) or b"")
    return folder


def options(folder: Path, **more: Any) -> dict[str, Any]:
    return {"tokenizer": str(folder / "original"), "kv_capacity": 256, **more}


def test_an_unknown_rule_names_the_option(folder: Path) -> None:
    with pytest.raises(Unsupported, match=r"new-rule.*--tokenizer DIR"):
        LLM(folder / "model.gguf")


@pytest.mark.parametrize("host", ["thread", "process"])
def test_the_synchronous_client_takes_it(folder: Path, host: str) -> None:
    with LLM(folder / "model.gguf", **options(folder, host=host)) as llm, LLM(folder / "known.gguf") as known:
        ours, theirs = (each.generate("abcab", GREEDY, use_tqdm=False)[0] for each in (llm, known))
    assert ours.prompt_token_ids == IDS
    assert ours.outputs[0].text == theirs.outputs[0].text


def test_the_asynchronous_client_and_the_server_take_it(folder: Path) -> None:
    async def ids() -> list[int]:
        async with AsyncEngine(folder / "model.gguf", **options(folder)) as engine:
            async for delta in engine.generate("abcab", GREEDY):
                assert delta.error is None
            return engine.client.tokenizer.encode("abcab")

    assert asyncio.run(ids()) == IDS
    with serving(lambda: AsyncEngine(folder / "model.gguf", **options(folder))) as served:
        assert served.post("/tokenize", prompt="abcab").json()["tokens"] == IDS


@pytest.mark.parametrize("command", ["run", "chat"])
def test_commands_take_it(
    command: str, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("abcab\n"))
    words = [str(folder / "model.gguf"), *(["abcab"] if command == "run" else [])]
    with LLM(folder / "known.gguf") as known:
        text = known.generate("abcab", GREEDY, use_tqdm=False)[0].outputs[0].text
    more = ["--tokenizer", str(folder / "original"), "--temperature", "0", "--max-tokens", "4"]
    assert execute([command, *words, *more]) == 0
    assert capsys.readouterr().out == f"{text}\n"


def test_a_packed_directory_gets_it(folder: Path, tmp_path: Path) -> None:
    words = [str(folder / "model.gguf"), str(tmp_path / "packed"), "--tokenizer", str(folder / "original")]
    assert execute(["quantize", *words]) == 0
    with LLM(tmp_path / "packed", kv_capacity=256) as llm:
        (output,) = llm.chat([{"role": "user", "content": "abcab"}], GREEDY, use_tqdm=False)
    assert output.prompt_token_ids == IDS


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "tokenizer_config.json").write_text("{}")
    yield tmp_path / "bare"


def test_a_directory_without_a_tokenizer_is_refused_by_name(folder: Path, bare: Path) -> None:
    with pytest.raises(ConfigError, match=rf"{bare} has no tokenizer\.json") as caught:
        LLM(folder / "model.gguf", tokenizer=bare)
    assert caught.value.param == "tokenizer"


def test_what_is_no_directory_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="absent") as caught:
        LLM(folder / "model.gguf", tokenizer=tmp_path / "absent")
    assert caught.value.param == "tokenizer"
    with pytest.raises(ConfigError, match=r"known\.gguf") as refused:
        LLM(folder / "model.gguf", tokenizer=folder / "known.gguf")
    assert refused.value.param == "tokenizer"


def test_the_template_is_the_directorys_or_else_the_models(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "original", tmp_path / "other")
    (tmp_path / "other" / "chat_template.jinja").write_text("c{{ messages[0].content }}")
    messages = [{"role": "user", "content": "ab"}]
    with LLM(folder / "model.gguf", tokenizer=tmp_path / "other") as llm:
        assert llm.client.render(messages) == "cab"
    (tmp_path / "other" / "chat_template.jinja").unlink()
    config = json.loads((folder / "original" / "tokenizer_config.json").read_text())
    del config["chat_template"]
    (tmp_path / "other" / "tokenizer_config.json").write_text(json.dumps(config))
    with LLM(folder / "model.gguf", tokenizer=tmp_path / "other") as llm:
        assert llm.client.render(messages) == "ab"


def test_of_a_hub_model_only_tokenizer_files_are_fetched(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {path.name: path.read_bytes() for path in (folder / "original").iterdir()}
    defaults = {"config.json": b"{}", "generation_config.json": b'{"eos_token_id": [9, 3]}'}
    large = {"model.safetensors": b"weights", "README.md": b"words"}
    with hub_of({"maker/model": FakeRepo({**files, **defaults, **large})}, tmp_path, monkeypatch) as hub:
        for _ in range(2):
            with LLM(folder / "model.gguf", tokenizer="maker/model", kv_capacity=256) as llm:
                assert llm.client.tokenizer is not None and llm.client.tokenizer.encode("abcab") == IDS
                assert {9, 3} <= set(llm.client.input_processor.eos_token_ids)
            monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # then from the cache
        assert not any(f"/{name}" in request for request in hub.seen("GET") for name in large)


def test_other_files_stay_the_models() -> None:
    class Files(GgufModel):
        def __init__(self, text: str) -> None:
            self.name, self.path, self.text = text, Path(text), text

        def read_file(self, name: str) -> bytes | None:
            return None if name == "generation_config.json" else json.dumps({self.text: name}).encode()

        def file_names(self, folder: str = "") -> list[str]:
            return ["tools.jinja"] if folder else ["config.json", "tokenizer.json", f"{self.text}.json"]

    both = OtherTokenizer(Files("model"), Files("other"))
    assert both.file_names() == ["config.json", "generation_config.json", "model.json", "tokenizer.json"]
    assert both.file_names("additional_chat_templates") == ["tools.jinja"]
    assert both.read_file("tokenizer_config.json") == b'{"other": "tokenizer_config.json"}'
    assert both.read_file("modules.json") == b'{"model": "modules.json"}'


@pytest.fixture(scope="module")
def first_token(folder: Path) -> int:
    """Return the most likely token after "abcab", at which no text ends by itself."""
    with LLM(folder / "known.gguf", kv_capacity=256) as llm:
        return llm.generate("abcab", GREEDY, use_tqdm=False)[0].outputs[0].token_ids[0]


@pytest.mark.parametrize(
    "file",
    [
        ("generation_config.json", {"eos_token_id": ["TOKEN"], "temperature": 0.0}),
        ("config.json", {"architectures": ["LlamaForCausalLM"], "eos_token_id": "TOKEN"}),
        ("config.json", {"architectures": ["AnyForConditionalGeneration"], "text_config": {"eos_token_id": "TOKEN"}}),
    ],
)
@pytest.mark.parametrize("door", ["library", "command", "server", "packed"])
def test_the_ends_are_the_directorys_at_every_door(
    folder: Path, tmp_path: Path, first_token: int, door: str, file: tuple[str, object], capfd: Any
) -> None:
    shutil.copytree(folder / "original", tmp_path / "other")
    (tmp_path / "other" / file[0]).write_text(json.dumps(file[1]).replace('"TOKEN"', str(first_token)))
    model, more = folder / "model.gguf", options(folder, tokenizer=str(tmp_path / "other"))
    if door == "packed":
        assert execute(["quantize", str(model), str(tmp_path / "packed"), "--tokenizer", more.pop("tokenizer")]) == 0
        model = tmp_path / "packed"
    if door == "command":
        words = [str(model), "abcab", "--tokenizer", more["tokenizer"], "--kv-capacity", "256"]
        assert execute(["run", *words, "--temperature", "0", "--max-tokens", "40"]) == 0
        assert re.search(r"\b(no output|[01] tokens)", capfd.readouterr().err)
    elif door == "server":
        with serving(lambda: AsyncEngine(model, **more)) as served:
            body = {"model": str(model), "prompt": "abcab", "temperature": 0, "max_tokens": 40}
            (choice,) = served.post("/v1/completions", **body).json()["choices"]
        assert choice["finish_reason"] == "stop" and choice["text"] == ""
    else:
        with LLM(model, **more) as llm:
            (output,) = llm.generate("abcab", SamplingParams(temperature=0.0, max_tokens=40), use_tqdm=False)[0].outputs
        assert output.finish_reason == "stop" and len(output.token_ids) <= 1


def test_the_recommended_sampling_is_the_directorys_or_else_the_models(folder: Path, tmp_path: Path) -> None:
    class Recommending(GgufModel):
        def generation_config(self, *, recommended: bool = True) -> GenerationConfig:
            return GenerationConfig(eos_token_ids=(9, 8), sampling={"top_k": 3} if recommended else {})

    shutil.copytree(folder / "original", tmp_path / "other")
    model = Recommending(folder / "known.gguf")
    for content, ends, sampling in (
        (None, (9, 8), {"top_k": 3}),
        ({"temperature": 0.25}, (9, 8), {"temperature": 0.25}),
        ({"temperature": 0.25, "eos_token_id": 7}, (7,), {"temperature": 0.25}),
    ):
        if content is not None:
            (tmp_path / "other" / "generation_config.json").write_text(json.dumps(content))
        both = with_tokenizer(model, str(tmp_path / "other"))
        assert both.generation_config().eos_token_ids == ends and both.generation_config().sampling == sampling
        assert not both.generation_config(recommended=False).sampling


def test_damaged_defaults_of_the_directory_are_named(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "original", tmp_path / "other")
    (tmp_path / "other" / "generation_config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"other/generation_config\.json: is not valid JSON"):
        LLM(folder / "model.gguf", **options(folder, tokenizer=str(tmp_path / "other")))
