"""Scripts of `bench/` say what is wrong with an argument, or what to install, in one line."""

from __future__ import annotations

import subprocess
import sys

import pytest

from determinism_engines import ENGINES
from source_tree import REPOSITORY

BENCH = REPOSITORY / "bench"
STARTED_BY_OTHERS = {
    *("adapter_llamacpp.py", "llamacpp_steps.py", "quality_llamacpp.py", "determinism_directory.py"),
    *(engine.program for engine in ENGINES.values()),
}
WITHOUT = """
import runpy, sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {missing}:
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Missing())
sys.path.insert(0, {folder!r})
sys.argv = [{script!r}, "--help"]
runpy.run_path({script!r}, run_name="__main__")
"""


def refusal(*command: str) -> str:
    """Return the only line that a command prints as it fails."""
    ended = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=60, cwd=REPOSITORY)
    (line,) = ended.stderr.splitlines()
    assert ended.returncode == 1 and not ended.stdout
    return line


@pytest.mark.parametrize(
    ("script", "packages"),
    [
        ("path.py", "'ferrum-llm[server]'"),
        ("own_server.py", "'ferrum-llm[server]'"),
        ("wire_forms.py", "'ferrum-llm[test]'"),
        ("overhead.py", "'ferrum-llm[server]'"),
        ("slow_readers.py", "'ferrum-llm[server]'"),
        ("quality_peers.py", "gguf"),
        ("quality_llamacpp.py", "llama-cpp-python"),
        ("adapter_peers.py", "gguf"),
        ("adapter_llamacpp.py", "llama-cpp-python"),
        ("hybrid_peers.py", "gguf"),
        ("llamacpp_steps.py", "llama-cpp-python"),
    ],
)
def test_missing_package_is_named_with_its_installation(script: str, packages: str) -> None:
    missing = {"fastapi", "h11", "gguf", "llama_cpp"}
    code = WITHOUT.format(missing=missing, folder=str(BENCH), script=str(BENCH / script))
    assert refusal("-c", code).endswith(f" is missing: pip install {packages}")


@pytest.mark.parametrize(
    ("script", "arguments", "reason"),
    [
        ("receipt.py", ["--shape", "huge"], "shape: must be one of "),
        ("receipt.py", ["--workload", "serve*"], "workload: 'serve"),
        ("one_arithmetic.py", ["no-model"], "model: 'no-model' is neither "),
        ("speculation_policy.py", ["--against", "no-file"], "No such file or directory: 'no-file'"),
    ],
)
def test_wrong_argument_is_named_without_a_traceback(script: str, arguments: list[str], reason: str) -> None:
    assert reason in refusal(f"bench/{script}", *arguments)


def test_every_script_is_run_by_the_function_that_reports_errors() -> None:
    scripts = {path.name for path in BENCH.glob("*.py") if "__main__" in path.read_text()}
    reporting = {path.name for path in BENCH.glob("*.py") if "run_script(main)" in path.read_text()}
    assert scripts - reporting == STARTED_BY_OTHERS
