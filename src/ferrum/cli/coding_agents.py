"""The coding agents that `ferrum launch` starts: their programs, and the settings that lead them to a server.

Settings go into arguments, environment variables and files of a temporary directory: those override the user's own
settings, and change none of the user's files. Finding a server is in `launch_agent`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

NO_KEY: Final = "none"
"""The key for servers without keys: clients require one, or send the user's own."""

WAIT_MS: Final = 3_600_000
"""How long clients wait for a reply, in milliseconds: the prompt of an agent can take minutes to compute."""

MOST_OUTPUT: Final = 32_000
"""Maximum tokens of a reply, where a client wants a number."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A model on a running server. `context` is None if the server does not say it, `key` if it needs none."""

    url: str
    model: str
    context: int | None
    key: str | None

    @property
    def output(self) -> int:
        """Tokens to reserve for a reply: a quarter of the context."""
        return MOST_OUTPUT if self.context is None else min(MOST_OUTPUT, self.context // 4)


@dataclass(frozen=True, slots=True)
class Settings:
    """Arguments before the user's, and environment variables."""

    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CodingAgent:
    """A client.

    Attributes:
        title, program, package: its name, its command, and its package of npm.
        prompt: tokens of its first prompt, about: a quarter of the bytes that it sends.
        least: the context it needs for that prompt, a few files and a reply.
        settings: return its settings for a server; files may be written to the directory.
    """

    title: str
    program: str
    package: str
    prompt: int
    least: int
    settings: Callable[[Endpoint, Path], Settings]


def claude_settings(server: Endpoint, directory: Path) -> Settings:
    """Return the settings of Claude Code. Variables in a file of `--settings` override those of the user's files."""
    models = ("MODEL", *(f"DEFAULT_{name}_MODEL" for name in ("OPUS", "SONNET", "HAIKU", "FABLE")))
    clouds = ("BEDROCK", "VERTEX", "FOUNDRY", "MANTLE", "ANTHROPIC_AWS", "GATEWAY")
    environment = {
        "ANTHROPIC_BASE_URL": server.url,
        "ANTHROPIC_AUTH_TOKEN": server.key or NO_KEY,
        "ANTHROPIC_API_KEY": "",
        **{f"ANTHROPIC_{name}": server.model for name in models},
        "CLAUDE_CODE_SUBAGENT_MODEL": server.model,
        **({} if server.context is None else {"CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(server.context)}),
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(server.output),
        "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_ENABLE_PROMPT_SUGGESTION": "false",
        "API_TIMEOUT_MS": str(WAIT_MS),
        **{f"CLAUDE_CODE_USE_{name}": "" for name in clouds},
    }
    path = directory / "claude-settings.json"  # a file, since process lists show arguments, and it holds the key
    path.touch(0o600)
    path.write_text(json.dumps({"env": environment}))
    return Settings(("--settings", str(path)), environment)


def codex_settings(server: Endpoint, directory: Path) -> Settings:  # noqa: ARG001 - it needs no file
    """Return the settings of Codex. Values of `-c` are TOML, and override its files and profiles."""
    provider = {
        "name": "ferrum",
        "base_url": f"{server.url}/v1",
        "wire_api": "responses",
        "env_key": "FERRUM_API_KEY",
        "stream_idle_timeout_ms": WAIT_MS,
    }
    values: dict[str, Any] = {
        "model_provider": "ferrum",
        "model": server.model,
        **{f"model_providers.ferrum.{name}": value for name, value in provider.items()},
        **({} if server.context is None else {"model_context_window": server.context}),
        "web_search": "disabled",
    }
    pairs = [f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in values.items()]
    return Settings(tuple(part for pair in pairs for part in ("-c", pair)), {"FERRUM_API_KEY": server.key or NO_KEY})


def opencode_settings(server: Endpoint, directory: Path) -> Settings:  # noqa: ARG001 - it needs no file
    """Return the settings of opencode. It reads this variable after all configuration files of the user."""
    name = f"ferrum/{server.model}"
    limit = {} if server.context is None else {"limit": {"context": server.context, "output": server.output}}
    config = {
        "model": name,
        "small_model": name,
        "agent": {each: {"model": name} for each in ("build", "plan", "general", "explore")},
        "enabled_providers": ["ferrum"],
        "disabled_providers": [],
        "provider": {
            "ferrum": {
                "npm": "@ai-sdk/openai-compatible",
                "name": "ferrum",
                "options": {"baseURL": f"{server.url}/v1", "apiKey": server.key or NO_KEY, "timeout": False},
                "models": {server.model: {"name": server.model, "reasoning": True, "tool_call": True, **limit}},
            }
        },
        "autoupdate": False,
        "share": "disabled",
    }
    return Settings(environment={"OPENCODE_CONFIG_CONTENT": json.dumps(config), "OPENCODE_DISABLE_MODELS_FETCH": "1"})


AGENTS: Final[Mapping[str, CodingAgent]] = MappingProxyType(
    {
        "claude": CodingAgent("Claude Code", "claude", "@anthropic-ai/claude-code", 20_000, 40_000, claude_settings),
        "codex": CodingAgent("Codex", "codex", "@openai/codex", 10_000, 16_000, codex_settings),
        "opencode": CodingAgent("opencode", "opencode", "opencode-ai", 8_000, 16_000, opencode_settings),
    }
)
"""The clients by the names that `ferrum launch` takes.

Prompts are those of Claude Code 2.1.197, Codex 0.171.0 and opencode 1.18.33.
"""
