"""`--tokenizer`: the tokenizer files of another place, for a GGUF file whose split rule is not known."""

from __future__ import annotations

import asyncio
import io
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFValueType

from fake_hub import FakeRepo, hub_of
from ferrum import LLM, AsyncEngine, SamplingParams
from ferrum.cli.main import execute
from ferrum.core.errors import ConfigError, ModelNotFound, Unsupported
from ferrum.runtime.gguf_model import GgufModel
from ferrum.runtime.other_tokenizer import OtherTokenizer
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
    large = {"model.safetensors": b"weights", "config.json": b"{}", "README.md": b"words"}
    with hub_of({"maker/model": FakeRepo({**files, **large})}, tmp_path, monkeypatch) as hub:
        with LLM(folder / "model.gguf", tokenizer="maker/model", kv_capacity=256) as llm:
            assert llm.client.tokenizer is not None and llm.client.tokenizer.encode("abcab") == IDS
        assert not any(f"/{name}" in request for request in hub.seen("GET") for name in large)


def test_other_files_stay_the_models() -> None:
    class Files(GgufModel):
        def __init__(self, text: str) -> None:
            self.name, self.path, self.text = text, Path(text), text

        def read_file(self, name: str) -> bytes:
            return f"{self.text} {name}".encode()

        def file_names(self, folder: str = "") -> list[str]:
            return ["tools.jinja"] if folder else ["config.json", "tokenizer.json", f"{self.text}.json"]

    both = OtherTokenizer(Files("model"), Files("other"))
    assert both.file_names() == ["config.json", "model.json", "tokenizer.json"]
    assert both.file_names("additional_chat_templates") == ["tools.jinja"]
    assert both.read_file("tokenizer_config.json") == b"other tokenizer_config.json"
    assert both.read_file("generation_config.json") == b"model generation_config.json"
