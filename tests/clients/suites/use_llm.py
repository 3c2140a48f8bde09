"""The `llm` command: a model that its configuration adds, asked in a shell."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

MODELS = """
- model_id: ferrum
  model_name: tiny
  api_base: "{url}/v1"
- model_id: ferrum-base
  model_name: tiny
  api_base: "{url}/v1"
  completion: true
"""


@pytest.fixture
def home(url: str, tmp_path: Path) -> dict[str, str]:
    (tmp_path / "extra-openai-models.yaml").write_text(MODELS.format(url=url))
    return {**os.environ, "LLM_USER_PATH": str(tmp_path), "OPENAI_API_KEY": "none"}


def ask(home: dict[str, str], *arguments: str) -> str:
    command = [
        str(Path(sys.executable).with_name("llm")),
        *arguments,
        "-o",
        "temperature",
        "0",
        "-o",
        "max_tokens",
        "12",
    ]
    done = subprocess.run(command, env=home, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_prompt_streamed_and_whole(home: dict[str, str]) -> None:
    text = ask(home, "-m", "ferrum", "read a file")
    assert text.strip() and ask(home, "-m", "ferrum", "--no-stream", "read a file") == text
    assert ask(home, "-m", "ferrum", "-s", "be brief", "read a file") != text


def test_a_conversation_goes_on(home: dict[str, str]) -> None:
    ask(home, "-m", "ferrum", "read a file")
    assert ask(home, "-c", "and now").strip()


def test_a_completion(home: dict[str, str]) -> None:
    assert ask(home, "-m", "ferrum-base", "import os").strip()
