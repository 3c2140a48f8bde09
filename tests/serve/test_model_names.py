"""Clients see a model's name, and no directory of the server's machine."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from ferrum.client.async_engine import AsyncEngine
from ferrum.server.common.served_model import public_name
from ferrum.sources.hub import BUILT_IN, resolve_model
from serve_kit import TEMPLATE, Served, error_of, serving

NAME = "my-model"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("secret-home")
    shutil.copytree(resolve_model(BUILT_IN), home / NAME)
    (home / "template.jinja").write_text(TEMPLATE)
    (home / "keys.txt").write_text("k\n")
    return home


@pytest.fixture(scope="module")
def server(home: Path) -> Iterator[Served]:
    def make() -> AsyncEngine:
        folders = {"record_dir": str(home / "records"), "prefix_cache_dir": str(home / "pages")}
        return AsyncEngine(str(home / NAME), **folders, kv_capacity=4096, threads=1)

    files = {"chat_template": str(home / "template.jinja"), "api_key_file": str(home / "keys.txt")}
    with serving(make, **files) as served:
        served.http.headers["authorization"] = "Bearer k"
        yield served


def test_no_reply_shows_a_directory_of_the_server(server: Served, home: Path) -> None:
    done = server.post("/v1/completions", prompt="a", max_tokens=1, request_id="one")
    replies = [
        done,
        server.chat(model=NAME, max_tokens=1),
        server.post("/v1/embeddings", input="a"),
        server.post("/v1/responses", input="a"),
        server.post("/v1/requests/one/replay"),
        server.post("/v1/completions", prompt="a", model="other"),
        *map(server.http.get, ("/", "/openapi.json", "/metrics", "/v1/config", "/v1/models", "/v1/plan")),
        server.http.get(f"/v1/models/{NAME}"),
        server.http.get("/v1/requests/one"),
        server.http.get("/v1/requests/other"),
    ]
    for reply in replies:
        assert home.name not in reply.text + str(reply.headers), reply.url
        assert reply.status_code in (200, 404), reply.text
    assert done.json()["model"] == NAME and f'model_name="{NAME}"' in server.http.get("/metrics").text
    config = server.http.get("/v1/config").json()
    assert (config["model"]["name"], config["engine"]["model"]["model"]) == (NAME, NAME)
    assert config["server"]["chat_template"] == "template.jinja" and config["engine"]["record_dir"] == "records"
    assert server.http.get("/v1/requests/one").json()["records"][0]["origin"]["model"] == NAME


def test_path_as_typed_is_accepted_and_not_shown(server: Served, home: Path) -> None:
    typed = str(home / NAME)
    for name in (NAME, typed):
        assert server.post("/v1/completions", model=name, prompt="a", max_tokens=1).json()["model"] == NAME
        reply = server.http.get(f"/v1/models/{name}")
        assert (reply.json()["id"], reply.json()["root"]) == (NAME, NAME)
    assert error_of(server.post("/v1/completions", model=str(home), prompt="a"), 404)["code"] == "model_not_found"


def test_only_paths_on_this_machine_are_shortened(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    monkeypatch.setenv("HOME", str(home))
    for typed in (NAME, f"./{NAME}/", f"~/{NAME}", str(home / NAME), f"../{home.name}/{NAME}"):
        assert public_name(typed) == NAME
    assert public_name(".") == home.name
    assert public_name(str(home / "gone.gguf")) == "gone.gguf"
    for other in (BUILT_IN, "org/name", "org/name@1234", "org/repo:Q4_K_M", "http://localhost:4318/v1/traces", "", "*"):
        assert public_name(other) == other
