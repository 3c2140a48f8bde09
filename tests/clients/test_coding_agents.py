"""Claude Code, Codex and opencode, started by `ferrum launch`, each edit a file in three turns.

`make test-clients` installs them from npm, as `agents/package.json` lists them. Each has a home without a login, its
user's settings name other servers, and everything but the server is behind a proxy that refuses and keeps the names.
"""

from __future__ import annotations

import json
import os
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest

import agent_script
import coding_script
from agent_kit import QWEN3
from scripted_model import scripted_parts
from serve_kit import Served, serving

pytestmark = pytest.mark.clients

PROGRAMS: Final = Path(__file__).parent / "agents" / "node_modules" / ".bin"
KEY: Final = "a-secret"
CONTEXT: Final = 262_144
"""A token of the scripted model is a byte, and the first prompt of Claude Code has 78,000."""

DEAD: Final = "http://127.0.0.1:9"
CLAUDE: Final = {
    "env": {"ANTHROPIC_BASE_URL": DEAD, "ANTHROPIC_API_KEY": "sk-ant-other", "CLAUDE_CODE_USE_BEDROCK": "1"},
    "model": "claude-another",
    "apiKeyHelper": "echo other",
}
CODEX: Final = f"""
model = "other"
model_provider = "elsewhere"
model_context_window = 1000
[model_providers.elsewhere]
name = "elsewhere"
base_url = "{DEAD}"
[model_providers.ferrum]
name = "ferrum"
base_url = "{DEAD}"
"""
OPENCODE: Final = {
    "$schema": "https://opencode.ai/config.json",  # opencode adds it to files that lack it
    "model": "anthropic/other",
    "enabled_providers": ["anthropic"],
    "disabled_providers": ["ferrum"],
    "agent": {"build": {"model": "anthropic/other"}},
    "provider": {"ferrum": {"npm": "@ai-sdk/anthropic", "options": {"baseURL": DEAD}}},
}
PATCHES: Final = {
    "slug": "scripted",
    "display_name": "scripted",
    "supported_reasoning_levels": [],
    "shell_type": "shell_command",
    "visibility": "list",
    "supported_in_api": True,
    "priority": 0,
    "support_verbosity": False,
    "truncation_policy": {"mode": "tokens", "limit": 10_000},
    "experimental_supported_tools": [],
    "base_instructions": "Edit files with apply_patch.",
    "apply_patch_tool_type": "freeform",
}
"""A model for which Codex offers its tool for patches, whose input follows a grammar of Lark."""


@dataclass(frozen=True)
class Client:
    """A client: the tool it edits with, its arguments before the message, and settings of its user by path.

    It asks other hosts for updates, plugins and statistics, and works without them.
    """

    name: str
    tool: str
    arguments: tuple[str, ...]
    files: dict[str, str]
    others: frozenset[str] = field(default_factory=frozenset)


EXEC: Final = ("exec", "--skip-git-repo-check", "--sandbox", "danger-full-access")
PLUGINS: Final = frozenset({"chatgpt.com", "ab.chatgpt.com", "github.com", "api.github.com"})
CLIENTS: Final = {
    "claude": Client(
        "claude",
        "Edit",
        ("--permission-mode", "acceptEdits", "-p"),
        {"home/.claude/settings.json": json.dumps(CLAUDE), "project/.claude/settings.local.json": json.dumps(CLAUDE)},
    ),
    "codex": Client("codex", "exec_command", EXEC, {"home/.codex/config.toml": CODEX}, PLUGINS),
    "codex-patch": Client(
        "codex",
        "apply_patch",
        ("-c", "model_catalog_json='models.json'", *EXEC),
        {"home/.codex/config.toml": CODEX, "project/models.json": json.dumps({"models": [PATCHES]})},
        PLUGINS,
    ),
    "opencode": Client(
        "opencode",
        "edit",
        ("run",),
        {"home/.config/opencode/opencode.json": json.dumps(OPENCODE), "project/opencode.json": json.dumps(OPENCODE)},
        frozenset({"registry.npmjs.org"}),
    ),
}


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    parts = scripted_parts(coding_script.reply, QWEN3, agent_script.MARKERS, context=CONTEXT)
    with serving(parts, api_key=KEY) as server:
        yield server


@pytest.fixture
def refused() -> Iterator[tuple[str, set[str]]]:
    """Run a proxy that refuses everything; yield its address and the hosts that it was asked for."""
    hosts: set[str] = set()

    class Refusing(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            _, target, *_ = self.rfile.readline().decode().split()
            hosts.add(target.rpartition(":")[0])
            self.wfile.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Refusing) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{proxy.server_address[1]}", hosts
        proxy.shutdown()


@pytest.mark.parametrize("name", CLIENTS)
def test_coding_agent_edits_a_file_in_three_turns(
    name: str, served: Served, refused: tuple[str, set[str]], tmp_path: Path
) -> None:
    client, (proxy, hosts) = CLIENTS[name], refused
    for path, text in client.files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    project = tmp_path / "project"
    project.mkdir(exist_ok=True)
    edited = project / "settings.ini"
    edited.write_text(f"{coding_script.OLD}\nsize = 3\n")
    served.requests.clear()
    launch = [sys.executable, "-m", "ferrum", "launch", client.name, "--url", served.url, "--"]
    done = subprocess.run(
        [*launch, *client.arguments, coding_script.task(edited)],
        cwd=project,
        env=_environment(tmp_path / "home", proxy),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0 and coding_script.ANSWER in done.stdout, said
    assert edited.read_text() == f"{coding_script.NEW}\nsize = 3\n", said
    prompts = _prompts(served)
    assert [client.tool in coding_script.tool_names(each) for each in prompts] == [True] * 3
    assert all(after.startswith(before) for before, after in pairwise(prompts)), "a prefix is computed again"
    assert {path: (tmp_path / path).read_text() for path in client.files} == client.files, "settings were changed"
    assert hosts <= client.others, hosts


def _environment(home: Path, proxy: str) -> dict[str, str]:
    """Return a client's environment: a home, a proxy, and variables that lead to other servers."""
    return {
        "PATH": f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(home),
        "FERRUM_API_KEY": KEY,
        "ANTHROPIC_BASE_URL": DEAD,
        "ANTHROPIC_API_KEY": "sk-ant-another",
        "OPENAI_BASE_URL": DEAD,
        "OPENAI_API_KEY": "sk-another",
        **{name: proxy for each in ("http_proxy", "https_proxy", "all_proxy") for name in (each, each.upper())},
    }


def _prompts(served: Served) -> list[str]:
    """Return the prompts with tools; requests for titles have none."""
    tokenizer = served.service.model().client.tokenizer
    assert tokenizer is not None
    every = (tokenizer.decode(each.prompt, skip_special_tokens=False) for each in served.requests)
    return [prompt for prompt in every if coding_script.tool_names(prompt)]
