"""Help texts and answers to a newcomer's mistakes, word for word: tests/data/cli_golden.txt.

`UPDATE_GOLDEN=1 python -m pytest tests/process/test_cli_golden.py` writes the file; read the difference then.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from command_kit import command_line
from ferrum.core.version import installed_version
from source_tree import REPOSITORY

GOLDEN = REPOSITORY / "tests" / "data" / "cli_golden.txt"
HELPS = ("--help", "serve --help")
PORT_IN_USE = "PORT_IN_USE"
"""Stands for a port that another socket listens on."""

MISTAKES = {
    "run --max-tokens -5": ("--max-tokens", "-5"),
    "run --temperature hot": ("--temperature", "hot"),
    "run --temperature 9": ("--temperature", "9"),
    "run nosuchmodel/": ("MODEL", "nosuchmodel/"),
    "run nosuchmodel": ("MODEL", "nosuchmodel"),
    "run --quantise int4": ("--quantise", "--quantize"),
    "run --quantize int5": ("--quantize", "int5"),
    "run --quantize int4-all": ("--quantize", "q4_0", "q4_k_m"),
    "run --group 128": ("--group",),
    "run --seed": ("--seed", "argument"),
    "run ferrum-tiny x --logit-bias seven": ("--logit-bias", "seven"),
    "chat ferrum-tiny": ("MODEL", "ferrum-tiny"),
    "chat": ("MODEL", "Missing"),
    "serve --policy foo": ("--policy", "foo"),
    "serve --max-queue 0": ("--max-queue", "0"),
    "serve --port 99999": ("--port", "99999"),
    f"serve --engine-host thread --port {PORT_IN_USE}": ("--port", PORT_IN_USE),
    "serve --kernels cuda": ("--kernels", "cuda"),
    "serve ferrum-tiny --tool-format foo": ("--tool-format", "foo"),
    "launch vim": ("CLIENT", "vim", "codex"),
    "formats nosuchmodel/": ("MODEL", "nosuchmodel/"),
    "serve --threads 5000": ("--threads", "5000"),
    "serve --record-gib 5": ("--record-gib", "--record"),
    "serve --max-batch-size 600": ("--max-batch-size", "600"),
    "pull x": ("MODEL", "'x'"),
    "replay nosuch": ("ID", "nosuch"),
    "bench --shape foo": ("--shape", "foo"),
    "bench --series 0": ("--series", "0"),
    "bench serve --url somewhere": ("--url", "somewhere"),
    "bench quality ferrum-tiny --quantize int8,int3": ("--quantize", "int3"),
    "bench quality ferrum-tiny --text options.toml": ("--text", "tokens"),
    "bench quality ferrum-tiny --against nosuchmodel/": ("--against", "nosuchmodel/"),
    "bench quality ferrum-tiny --plot plot.png": ("--plot", "plot.png"),
    "bench quality": ("MODEL", "Missing"),
    "quantize ferrum-tiny out --quantize int3": ("--quantize", "int3"),
    "quantize ferrum-tiny out --lora nosuch": ("--lora", "nosuch"),
    "quantize ferrum-tiny out --calibrate none.txt": ("--calibrate", "none.txt"),
    "quantize ferrum-tiny out --calibrate options.toml": ("--calibrate", "tokens"),
    "srve": ("srve", "serve"),
    "--config options.toml run": ("--config", "temprature"),
}
"""Command lines, and what their errors must name: the option as typed and the value, or the valid spelling."""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("golden")
    (path / "options.toml").write_text("temprature = 0.5\n")
    return path


@pytest.fixture
def taken_port() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        yield str(taken.getsockname()[1])


@pytest.fixture(scope="module")
def transcript() -> Iterator[dict[str, str]]:
    """Collect the output of every command; write the golden file if asked to."""
    found: dict[str, str] = {}
    yield found
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text("\n".join(f"$ ferrum {line}\n{text}" for line, text in found.items()))


def golden() -> dict[str, str]:
    blocks = GOLDEN.read_text().split("$ ferrum ")[1:] if GOLDEN.exists() else []
    return {line: text.strip("\n") for line, _, text in (block.partition("\n") for block in blocks)}


@pytest.mark.parametrize("line", [*HELPS, *MISTAKES])
def test_output_is_the_golden_one(
    line: str,
    directory: Path,
    taken_port: str,
    transcript: dict[str, str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(directory)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("HF_HUB_CACHE", str(directory / "hub"))
    monkeypatch.setattr("ferrum.server.launch.log_to_stderr", lambda: None)
    code, out, err = command_line(capsys)(*line.replace(PORT_IN_USE, taken_port).split())
    text = re.sub(r"\x1b\[[0-9;]*m", "", out + err).replace(taken_port, PORT_IN_USE)
    text = "".join(f"{each.rstrip()}\n" for each in text.splitlines())
    transcript[line] = text
    if line in MISTAKES:
        (error,) = text.splitlines()
        assert code == 2 and all(part in error for part in MISTAKES[line])
        assert "; " in error or "`ferrum" in error, "an error names the next step"
    if not os.environ.get("UPDATE_GOLDEN"):
        assert text.strip("\n") == golden()[line]


@pytest.mark.skipif("UPDATE_GOLDEN" in os.environ, reason="the file is being written")
def test_the_golden_file_has_no_other_commands() -> None:
    assert set(golden()) == {*HELPS, *MISTAKES}


def test_the_version_names_the_kernels(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = command_line(capsys)("--version")
    assert code == 0 and re.fullmatch(rf"ferrum {re.escape(installed_version())} \(\w+\)\n", out)


def test_the_shell_completes_commands_and_options(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_FERRUM_COMPLETE", "complete_bash")
    for words, completed in (("ferrum ser", "serve"), ("ferrum serve --max-q", "--max-queue")):
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
        with pytest.raises(SystemExit):
            command_line(capsys)()
        assert capsys.readouterr().out.split() == [completed]
