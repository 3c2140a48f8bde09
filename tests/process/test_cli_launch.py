"""`ferrum launch` with stand-ins for the clients, which report what they were started with."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import agent_script
from agent_kit import QWEN3
from command_kit import command_line
from ferrum.cli.launch_agent import address, find
from ferrum.client.async_engine import AsyncEngine
from ferrum.core.errors import ConfigError
from ferrum.server.common.service import State
from ferrum.sources.hub import BUILT_IN, resolve_model
from scripted_model import scripted_parts
from serve_kit import Served, serving

KEY = "a-secret"
CONTEXT = 65_536

CLIENT = f"""#!{sys.executable}
import json, os, signal, sys, time
arguments = sys.argv[1:]
settings = arguments[arguments.index("--settings") + 1] if "--settings" in arguments else None
report = {{
    "arguments": arguments,
    "environment": dict(os.environ),
    "settings": settings and json.load(open(settings)),
    "mode": settings and os.stat(settings).st_mode & 0o777,
}}
path = os.environ["REPORT"]
json.dump(report, open(path + ".part", "w"))
os.rename(path + ".part", path)
end = arguments[-1]
if end == "crash":
    os.kill(os.getpid(), signal.SIGKILL)
if end == "wait":
    signal.signal(signal.SIGINT, lambda *_: sys.exit(3))
    time.sleep(100)
sys.exit(int(end))
"""


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """Run a server with a key and a context that suffices."""
    parts = scripted_parts(agent_script.reply, QWEN3, agent_script.MARKERS)
    with serving(parts, api_key=KEY, served_model_name=["first", "org/second"]) as server:
        yield server


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put stand-ins on the path; return the file that they write."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("claude", "codex", "opencode"):
        (programs / name).write_text(CLIENT)
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("REPORT", str(tmp_path / "report.json"))
    monkeypatch.setenv("FERRUM_API_KEY", KEY)
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "example.org")
    return tmp_path / "report.json"


def test_claude_code_gets_its_settings_in_a_file_and_in_the_environment(
    served: Served, report: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ("launch", "claude", "--url", served.url, "--", "-p", "a question", "0")
    code, out, err = command_line(capsys)(*line)
    assert (code, out) == (0, "") and f"Claude Code uses first (context {CONTEXT}) at {served.url}" in err
    given = json.loads(report.read_text())
    option, file, *rest = given["arguments"]
    assert option == "--settings" and rest == ["-p", "a question", "0"] and given["mode"] == 0o600
    assert not Path(file).exists(), "a temporary file, that of a key, was left"
    variables = given["settings"]["env"]
    assert variables["ANTHROPIC_BASE_URL"] == served.url and variables["ANTHROPIC_AUTH_TOKEN"] == KEY
    assert variables["ANTHROPIC_MODEL"] == variables["ANTHROPIC_DEFAULT_HAIKU_MODEL"] == "first"
    assert variables["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] == str(CONTEXT)
    assert given["environment"].items() >= variables.items()
    assert KEY not in " ".join(given["arguments"]) and KEY not in err


def test_codex_gets_a_provider_of_responses(served: Served, report: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ("launch", "codex", "--url", served.url.rpartition(":")[2], "--model", "org/second", "--", "exec", "0")
    assert command_line(capsys)(*line)[0] == 0
    given = json.loads(report.read_text())
    *pairs, command, _ = given["arguments"]
    assert set(pairs[::2]) == {"-c"} and command == "exec"
    config: Any = tomllib.loads("\n".join(pairs[1::2]))
    provider = config["model_providers"][config["model_provider"]]
    assert config["model"] == "org/second" and config["model_context_window"] == CONTEXT
    assert (provider["base_url"], provider["wire_api"]) == (f"{served.url}/v1", "responses")
    assert given["environment"][provider["env_key"]] == KEY and KEY not in " ".join(given["arguments"])
    assert given["environment"]["NO_PROXY"] == "example.org,127.0.0.1"


def test_opencode_gets_its_configuration_in_the_environment(
    served: Served, report: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ("launch", "opencode", "--url", f"{served.url}/v1/", "--", "run", "0")
    assert command_line(capsys)(*line)[0] == 0
    given = json.loads(report.read_text())
    config = json.loads(given["environment"]["OPENCODE_CONFIG_CONTENT"])
    name, _, model = config["model"].partition("/")
    provider = config["provider"][name]
    assert given["arguments"] == ["run", "0"] and config["small_model"] == config["model"]
    assert provider["options"]["baseURL"] == f"{served.url}/v1" and provider["options"]["apiKey"] == KEY
    assert provider["models"][model]["limit"] == {"context": CONTEXT, "output": CONTEXT // 4}


@pytest.mark.parametrize(("end", "code"), [("7", 7), ("1", 1), ("crash", 128 + signal.SIGKILL)])
@pytest.mark.usefixtures("report")
def test_the_exit_code_is_that_of_the_client(
    served: Served, end: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command_line(capsys)("launch", "opencode", "--url", served.url, "--", end)[0] == code


@pytest.mark.usefixtures("report")
def test_a_server_that_loads_is_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    def load() -> AsyncEngine:
        time.sleep(0.5)
        return AsyncEngine.from_parts(scripted_parts(agent_script.reply, QWEN3, agent_script.MARKERS))

    with serving(load, ready=False, api_key=KEY) as server:
        assert server.service.state is State.LOADING
        assert command_line(capsys)("launch", "opencode", "--url", server.url, "--", "0")[0] == 0


@pytest.mark.usefixtures("report")
@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ("--url 1", ("--url", "127.0.0.1:1", "refused")),
        ("--url ftp://host", ("--url", "ftp://host")),
        ("--url {url} --model third", ("third", "first, org/second")),
        ("--url {url} --api-key other", ("API key", "FERRUM_API_KEY", "--api-key")),
        ("--url {url} --api-key caf\u00e9", ("--api-key", "ASCII")),
        ("--url {url} --kv-capacity 9", ("--url", "--kv-capacity")),
        ("--url {url} --kv-capacity 0", ("--kv-capacity", "0")),
        ("--kv-capacity 9", ("--model",)),
        (f"--model {BUILT_IN} --threads 1", ("Claude Code", "1024", "40000", "--max-sequence-length")),
        ("--model nosuch/ --threads 1", ("nosuch/", "ferrum list")),
    ],
)
def test_errors_name_the_value_and_the_next_step(
    served: Served, options: str, parts: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = command_line(capsys)("launch", "claude", *options.format(url=served.url).split())
    last = err.splitlines()[-1]
    assert code == 2 and all(part in last for part in parts), err


def test_a_missing_client_is_named_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for client, package in (
        ("claude", "@anthropic-ai/claude-code"),
        ("codex", "@openai/codex"),
        ("opencode", "opencode-ai"),
    ):
        code, _, err = command_line(capsys)("launch", client, "--model", "any")
        assert code == 2 and f"npm install --global {package}" in err
    code, _, err = command_line(capsys)("launch", "vim")
    assert code == 2 and "'vim'" in err and "claude, codex, opencode" in err


@pytest.mark.parametrize("url", ["", "8000/x", "localhost:8000", "http://", "http://[::1", "http://host/?a=b"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="must be a port or look like"):
        address(url)


@pytest.mark.parametrize(
    ("number", "reached", "code"),
    [(signal.SIGINT, "all", 3), (signal.SIGTERM, "command", 128 + signal.SIGTERM)],
)
def test_a_started_server_ends_with_the_client(
    report: Path, tmp_path: Path, number: signal.Signals, reached: str, code: int
) -> None:
    """Ctrl-C reaches the whole group and is the client's to handle; SIGTERM reaches the command alone."""
    model = tmp_path / "model"
    model.mkdir()
    for path in resolve_model(BUILT_IN).iterdir():
        (model / path.name).write_bytes(path.read_bytes())
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "max_position_embeddings": CONTEXT}))
    command = [sys.executable, "-m", "ferrum", "launch", "codex", "--model", str(model), "--kv-capacity", str(CONTEXT)]
    with subprocess.Popen(
        [*command, "--no-prefix-cache", "--", "wait"], stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as launched:
        while not report.exists():
            assert launched.poll() is None, launched.stderr and launched.stderr.read()
            time.sleep(0.05)
        time.sleep(0.2)  # the client sets its handler after it has reported
        os.killpg(launched.pid, number) if reached == "all" else launched.send_signal(number)
        assert launched.stderr is not None
        said = launched.stderr.read()
        assert launched.wait() == code, said
    assert f"ferrum serve {model} --kv-capacity={CONTEXT} --no-prefix-cache" in said
    arguments = json.loads(report.read_text())["arguments"]
    url = next(json.loads(each.partition("=")[2]) for each in arguments if "base_url" in each)
    with pytest.raises(ConfigError, match="refused"):
        find(url.removesuffix("/v1"), None, None)
