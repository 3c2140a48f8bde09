"""`ferrum serve`: options reach server and engine, invalid ones fail before a socket opens."""

from __future__ import annotations

import builtins
import json
import logging
import os
import socket
import subprocess
import sys
from typing import Any

import pytest

from ferrum.cli.main import execute
from ferrum.client.async_engine import AsyncEngine
from ferrum.client.client_base import build
from ferrum.core.errors import ModelNotFound
from ferrum.core.logging import JsonFormatter
from ferrum.server.server_config import ServerConfig


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the command from changing the logging of the tests' process."""
    monkeypatch.setattr("ferrum.server.launch.log_to_stderr", lambda: None)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Replace the server; return its configuration, its API key if any, and the engine's options."""
    got: list[Any] = []

    def serve(make: Any, config: ServerConfig, api_key: str | None = None) -> None:
        got.append(config)
        got.extend([] if api_key is None else [api_key])
        make()

    def begin(model: str, **options: Any) -> AsyncEngine:
        got.append((model, options))
        return AsyncEngine.__new__(AsyncEngine)

    monkeypatch.setattr("ferrum.server.launch.serve", serve)
    monkeypatch.setattr("ferrum.client.async_engine.AsyncEngine", begin)
    return got


def test_options_reach_the_server_and_the_engine(served: list[Any]) -> None:
    arguments = "serve some/model --port 9 --strict --keep-alive-seconds 2.5 --max-queue 3 --engine-host thread"
    assert execute([*arguments.split(), "--policy", "priority"]) == 0
    config, engine = served
    assert config == ServerConfig(port=9, strict=True, keep_alive_seconds=2.5)
    assert engine == ("some/model", {"max_queue": 3, "host": "thread", "policy": "priority"})


def test_the_default_is_the_built_in_model_on_localhost(served: list[Any]) -> None:
    assert execute(["serve"]) == 0
    config, engine = served
    model, options = engine
    assert options.pop("child").process.returncode is not None, "an unused process ends"
    assert config.host == "127.0.0.1" and (model, options) == ("ferrum-tiny", {"host": "process"})


@pytest.mark.parametrize(
    "option",
    [
        "--port=70000",
        "--max-body-bytes=0",
        "--pooling=max",
        "--engine-host=moon",
        "--host=",
        "--drain-seconds=inf",
        "--policy=foo",
        "--max-queue=0",
        "--kernels=cuda",
        "--record-gib=5",
    ],
)
def test_an_invalid_option_fails_before_a_socket_opens(
    served: list[Any], capsys: pytest.CaptureFixture[str], option: str
) -> None:
    assert execute(["serve", option]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert option.split("=")[0] in line and served == []


def test_api_key_comes_from_the_option_or_the_environment(served: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, option, key in (("one", [], "one"), ("one", ["--api-key", "two"], "two"), ("", [], "")):
        monkeypatch.setenv("FERRUM_API_KEY", variable)
        served.clear()
        assert execute(["serve", "--engine-host", "thread", *option]) == 0
        assert served[1] == key


@pytest.mark.parametrize("option", ["--api-key=", "--api-key=a b", "--api-key=\xfc", "--chat-template=/nowhere"])
def test_unusable_key_or_template_is_refused(capsys: pytest.CaptureFixture[str], option: str) -> None:
    assert execute(["serve", "--engine-host=thread", option]) == 2
    assert option.partition("=")[0] in capsys.readouterr().err.splitlines()[-1]


def test_an_unreadable_file_of_keys_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["serve", "--api-key-file=/nowhere"]) == 2
    assert "--api-key-file" in capsys.readouterr().err.splitlines()[-1]


def test_a_missing_model_ends_the_server_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ModelNotFound):
        build("./nothing-here")
    assert execute(["serve", "./nothing-here", "--port", "0"]) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("ferrum: ")


def test_a_port_in_use_ends_the_server_with_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert execute(["serve", "--port", str(port), "--engine-host", "thread"]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("ferrum: --port") and str(port) in line and "127.0.0.1" in line


@pytest.mark.parametrize(
    ("error", "reason"),
    [(ImportError("no", name="fastapi"), "fastapi is missing"), (ImportError("libz is too old"), "libz is too old")],
)
def test_a_missing_library_is_named_with_its_installation(
    error: ImportError, reason: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "ferrum.server.launch":
            raise error
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    assert execute(["serve"]) == 2
    assert f"{reason}: pip install 'ferrum-llm[server]'" in capsys.readouterr().err


def test_every_log_line_of_any_logger_is_a_json_object() -> None:
    script = """
import logging, warnings
from ferrum.server.launch import log_to_stderr
log_to_stderr()
for name in ("asyncio", "opentelemetry.exporter", "uvicorn.error", "ferrum.server"):
    logging.getLogger(name).error("in the\\nmidst")
warnings.warn("look out")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [line["logger"] for line in lines[:4]] == [
        "asyncio",
        "opentelemetry.exporter",
        "uvicorn.error",
        "ferrum.server",
    ]
    assert len(lines) == 5 and "look out" in lines[4]["message"]


def test_the_engines_process_logs_json_like_the_server() -> None:
    script = """
from ferrum import LLM, SamplingParams
from ferrum.client.engine_process import Child
with LLM("ferrum-tiny", host="process", child=Child(log_objects=True), generation_config="none") as llm:
    llm.generate("a", SamplingParams(max_tokens=1), use_tqdm=False)
"""
    environment = {**os.environ, "FERRUM_LOG_TOKENS": "1"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert {line["logger"] for line in lines} == {"ferrum.executor", "ferrum.tokens"}


def test_a_log_record_is_one_json_line() -> None:
    record = logging.LogRecord("ferrum", logging.INFO, "", 0, "a\nb %s", ("\ud800",), None)
    record.fields = {"path": 'x"\n\u2028'}
    line = JsonFormatter().format(record)
    assert "\n" not in line and json.loads(line)["path"] == 'x"\n\u2028'
