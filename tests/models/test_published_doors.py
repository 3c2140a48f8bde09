"""Published GGUF files at every door: run, chat, serve, quantize and replay, as real processes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from own_server import own_server
from published_models import MODELS
from source_tree import REPOSITORY

pytestmark = pytest.mark.models

PROMPT = "The capital of France is"
TEMPLATE = REPOSITORY / "tests" / "data" / "templates" / "google-gemma-2-2b-it.jinja"
CHAT = {"gemma": ("--chat-template", str(TEMPLATE)), "smollm2": ()}
"""Options of chats: Gemma 3 270M is a base model, whose file has no template."""


def ferrum(*arguments: object, said: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ferrum", *map(str, arguments)]
    done = subprocess.run(command, input=said, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done


@pytest.mark.parametrize("name", MODELS)
def test_a_recorded_run_is_replayed_bit_for_bit(name: str, tmp_path: Path) -> None:
    done = ferrum("run", MODELS[name](), PROMPT, "--max-tokens", 12, "--seed", 3, "--record", tmp_path)
    assert done.stdout.strip()
    (identity,) = re.findall(r"id (\S+)\]", done.stderr)
    assert "same bits" in ferrum("replay", identity, "--record", tmp_path, "--threads", 1).stdout


@pytest.mark.parametrize("name", MODELS)
def test_a_chat_answers(name: str) -> None:
    options = ("--max-tokens", 24, "--temperature", 0, *CHAT[name])
    assert ferrum("chat", MODELS[name](), *options, said="Name the capital of France.\n").stdout.strip()


@pytest.mark.parametrize("name", MODELS)
def test_a_packed_directory_runs(name: str, tmp_path: Path) -> None:
    ferrum("quantize", MODELS[name](), tmp_path / "packed", "--quantize", "q4_k_m")
    options = ("--max-tokens", 8, "--temperature", 0)
    assert ferrum("run", tmp_path / "packed", PROMPT, *options).stdout.strip()
    assert "context" in ferrum("plan", tmp_path / "packed").stdout


@pytest.mark.parametrize("name", MODELS)
def test_a_server_gives_the_text_of_the_command(name: str) -> None:
    with own_server(str(MODELS[name]()), ["--kv-capacity", "4096"]) as server:
        (model,) = _json(f"{server.url}/models")["data"]
        body = {"model": model["id"], "prompt": PROMPT, "max_tokens": 8, "temperature": 0}
        reply = _json(f"{server.url}/completions", body)
    alone = ferrum("run", MODELS[name](), PROMPT, "--max-tokens", 8, "--temperature", 0).stdout
    assert reply["choices"][0]["text"].strip() == alone.strip()


def _json(url: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as reply:
        return json.load(reply)
