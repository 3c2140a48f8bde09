"""Adapters of a server: models of their own names in every dialect, vLLM's routes and llama.cpp's."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from ferrum import AsyncEngine
from ferrum.core.errors import ConfigError
from ferrum.engine.messages import AdapterCounts
from ferrum.server.common.metrics import AdapterUseMetric
from ferrum.server.server_config import ServerConfig
from lora_files import write_lora
from serve_kit import Served, serving, wait_for
from tiny import find
from tiny_with_tokenizer import spoken

CASE = find("qwen3")
LOADED = "Success: LoRA adapter '{}' added successfully."
REMOVED = "Success: LoRA adapter '{}' removed successfully."


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("adapters")
    for seed in range(3):
        write_lora(root / f"a{seed}", CASE, seed)
    write_lora(root / "invoked", CASE, 5, invocation=[40, 41])
    (root / "bad").mkdir()
    (root / "bad" / "adapter_config.json").write_text("{")
    return root


def engine(root: Path, *names: str, **options: Any) -> AsyncEngine:
    modules = [f"{name}={root / name}" for name in names]
    return AsyncEngine(str(spoken("qwen3")), dtype="float32", kv_capacity=2048, lora=modules, **options)


@pytest.fixture(scope="module")
def fixed(root: Path) -> Iterator[Served]:
    with serving(lambda: engine(root, "a0", "a1"), served_model_name="base") as server:
        yield server


@pytest.fixture
def server(root: Path) -> Iterator[Served]:
    make = lambda: engine(root, "a0")  # noqa: E731 - a function of no arguments
    with serving(make, served_model_name="base", allow_runtime_lora=True, lora_root=str(root)) as server:
        yield server


def text(server: Served, model: str, **body: Any) -> str:
    reply = server.complete(model=model, prompt="to be or not", max_tokens=8, temperature=0, ignore_eos=True, **body)
    assert reply.status_code == 200, reply.text
    assert reply.json()["model"] == model
    found: str = reply.json()["choices"][0]["text"]
    return found


def test_adapters_are_models_with_a_parent(fixed: Served, root: Path) -> None:
    data = fixed.http.get("/v1/models").json()["data"]
    assert [(each["id"], each["parent"]) for each in data] == [("base", None), ("a0", "base"), ("a1", "base")]
    assert data[1]["root"] == "a0", "replies show no directory of the server"
    assert fixed.http.get("/v1/models/a1").json() == data[2]
    config = fixed.http.get("/v1/config")
    assert "a0=a0" in config.text and str(root) not in config.text
    anthropic = fixed.http.get("/v1/models", headers={"anthropic-version": "2023-06-01"}).json()["data"]
    assert [each["id"] for each in anthropic] == ["base", "a0", "a1"]
    assert [each["name"] for each in fixed.http.get("/api/tags").json()["models"]] == [
        "base:latest",
        "a0:latest",
        "a1:latest",
    ]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "ab", "max_tokens": 1}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "ab"}], "max_tokens": 1}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "ab"}], "max_tokens": 1}),
        ("/v1/responses", {"input": "ab", "max_output_tokens": 1}),
        ("/api/generate", {"prompt": "ab", "options": {"num_predict": 1}}),
        ("/api/chat", {"messages": [{"role": "user", "content": "ab"}], "options": {"num_predict": 1}}),
        ("/v1/embeddings", {"input": "ab"}),
        ("/api/embed", {"input": "ab"}),
    ],
)
def test_every_dialect_serves_an_adapter_by_its_name(fixed: Served, path: str, body: dict[str, Any]) -> None:
    for name in ("base", "a1"):
        reply = fixed.post(path, model=name, **body)
        assert reply.status_code == 200, reply.text
        used = [each.name for each in fixed.requests[-1].adapters]
        assert used == ([] if name == "base" else [name])


def test_replies_differ_by_adapter(fixed: Served) -> None:
    assert len({text(fixed, name) for name in ("base", "a0", "a1")}) == 3
    unknown = fixed.complete(model="a9")
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")


def test_adapters_load_and_unload_with_the_texts_of_vllm(server: Served) -> None:
    assert server.complete(model="new").status_code == 404
    reply = server.post("/v1/load_lora_adapter", lora_name="new", lora_path="a1")
    assert (reply.status_code, reply.text) == (200, LOADED.format("new"))
    before = text(server, "new")
    again = server.post("/v1/load_lora_adapter", lora_name="new", lora_path="a2")
    assert again.status_code == 400 and "The lora adapter 'new' has already been loaded." in again.text
    assert server.post("/v1/load_lora_adapter", lora_name="new", lora_path="a2", load_inplace=True).is_success
    assert text(server, "new") != before
    reply = server.post("/v1/unload_lora_adapter", lora_name="new")
    assert (reply.status_code, reply.text) == (200, REMOVED.format("new"))
    gone = server.post("/v1/unload_lora_adapter", lora_name="new")
    assert gone.status_code == 404 and "The lora adapter 'new' cannot be found." in gone.text
    assert server.complete(model="new").status_code == 404


def test_what_cannot_be_loaded_is_refused_and_others_go_on(server: Served, root: Path, tmp_path: Path) -> None:
    outside = write_lora(tmp_path / "outside", CASE, 1)
    (root / "link").unlink(missing_ok=True)
    (root / "link").symlink_to(outside)
    before = text(server, "a0")
    for path, status in {
        "missing": 404,
        "bad": 400,
        "../" + root.name + "/../x": 400,
        str(outside): 400,
        "link": 400,
        "a\0b": 400,
    }.items():
        reply = server.post("/v1/load_lora_adapter", lora_name="x", lora_path=path)
        assert reply.status_code == status, (path, reply.text)
        assert reply.json()["error"]["param"] == "lora_path" and str(root) not in reply.text
    both = server.post("/v1/load_lora_adapter", lora_name="x")
    assert both.status_code == 400 and "Both 'lora_name' and 'lora_path' must be provided." in both.text
    base = server.post("/v1/load_lora_adapter", lora_name="base", lora_path="a0")
    assert base.status_code == 400 and "conflicts with a served base model" in base.text
    assert text(server, "a0") == before


def test_runtime_loading_is_off_by_default(fixed: Served) -> None:
    for verb in ("load", "unload"):
        reply = fixed.post(f"/v1/{verb}_lora_adapter", lora_name="a0", lora_path="a0")
        assert reply.status_code == 404 and "--allow-runtime-lora" in reply.text
    with pytest.raises(ConfigError, match="required by --allow-runtime-lora"):
        ServerConfig(allow_runtime_lora=True)


def test_scales_of_llama_cpp_apply_to_later_requests_of_the_base(server: Served, root: Path) -> None:
    base, adapted = text(server, "base"), text(server, "a0")
    (entry,) = server.http.get("/lora-adapters").json()
    assert entry == {"id": 0, "path": "a0", "scale": 0.0, "task_name": "", "prompt_prefix": ""}
    assert server.http.post("/lora-adapters", json=[{"id": 0, "scale": 1.0}]).json() == {"success": True}
    assert server.http.get("/lora-adapters").json()[0]["scale"] == 1.0
    assert text(server, "base") == adapted
    assert text(server, "base", lora=[]) == base
    assert text(server, "a0", lora=[{"id": 0, "scale": 0.0}]) == base
    assert server.http.post("/lora-adapters", json=[]).json() == {"success": True}
    assert text(server, "base") == base
    assert text(server, "base", lora=[{"id": 0, "scale": 1}]) == adapted
    half = text(server, "base", lora=[{"id": 0, "scale": 0.5}], echo=False)
    assert server.requests[-1].adapters[0].scale == 0.5 and half
    for wrong in ([{"id": 7, "scale": 1}], [{"id": 0, "scale": 1}] * 2):
        refused = server.complete(model="base", lora=wrong)
        assert refused.status_code == 400 and refused.json()["error"]["param"].startswith("lora[")
        assert server.http.post("/lora-adapters", json=wrong).status_code == 400


def test_metrics_name_the_adapters_in_use(server: Served, root: Path) -> None:
    def lines() -> dict[str, float]:
        found = server.http.get("/metrics").text.splitlines()
        return {line.split(" ")[0]: float(line.split(" ")[1]) for line in found if "lora" in line and line[0] != "#"}

    labels = '{engine="0",model_name="base"}'
    idle = 'vllm:lora_requests_info{max_lora="1",running_lora_adapters="",waiting_lora_adapters=""}'
    text(server, "a0")
    wait_for(lambda: lines().get(idle) == 0.0)
    assert lines()[f"ferrum:lora_adapters{labels}"] == 1 == lines()[f"ferrum:lora_loads_total{labels}"]


def test_the_metric_of_vllm_names_adapters_in_use() -> None:
    counts, registry = AdapterCounts(2, 80, 3, 1, running=("a", "b"), waiting=("c",)), CollectorRegistry()
    AdapterUseMetric(lambda: (counts, 5.0), registry)
    busy = 'vllm:lora_requests_info{max_lora="2",running_lora_adapters="a,b",waiting_lora_adapters="c"} 5.0'
    assert busy in generate_latest(registry).decode().splitlines()


def test_a_stream_keeps_its_adapter_while_it_is_replaced(server: Served, root: Path) -> None:
    copied = root / "copied"
    shutil.copytree(root / "a1", copied, dirs_exist_ok=True)
    assert server.post("/v1/load_lora_adapter", lora_name="c", lora_path="copied").is_success
    body = {"model": "c", "prompt": "to be", "max_tokens": 150, "temperature": 0, "ignore_eos": True}
    whole = server.post("/v1/completions", **body).json()["choices"][0]["text"]
    streamed = list[str]()
    for delta in server.openai().completions.create(
        model="c", prompt="to be", max_tokens=150, temperature=0, stream=True, extra_body={"ignore_eos": True}
    ):
        if not streamed:
            shutil.rmtree(copied)
            shutil.copytree(root / "a2", copied)
            assert server.post("/v1/load_lora_adapter", lora_name="c", lora_path="copied", load_inplace=True).is_success
        streamed.append(delta.choices[0].text)
    assert "".join(streamed) == whole
