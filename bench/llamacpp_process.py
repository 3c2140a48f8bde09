"""llama.cpp in a process of its environment, for comparisons on one file. `llamacpp_steps.py` runs there."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

from ferrum.bench.workloads import Kind, Workload

_HINT: Final = " (where the system does not allow AMX, use --plain, or compile it as docs/bench.md says)"
PEER: Final = Path(__file__).with_name("llamacpp_steps.py")


class LlamaCppSteps:
    """llama.cpp with a file.

    Args:
        python: interpreter that has llama-cpp-python.
        model: a GGUF file.
        options: of `llamacpp_steps.py`.
    """

    def __init__(self, python: Path, model: Path, *options: str) -> None:
        command = [str(python), str(PEER), str(model), *options]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def run(self, workload: Workload) -> float:
        """Return the seconds of a sample."""
        assert self._process.stdin is not None and self._process.stdout is not None
        sizes = f"{workload.sequences} {workload.context} {workload.tokens}"
        words = f"prefill {workload.tokens}" if workload.kind is Kind.PREFILL else f"decode {sizes}"
        print(words, file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"llama.cpp ended with code {self._process.wait()}{_HINT}")
        return float(line)

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def peer_version(python: Path) -> str:
    """Return the version of llama-cpp-python."""
    code = "import llama_cpp; print(llama_cpp.__version__)"
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{python} has no llama-cpp-python: make .venv-peers/.made")
    return done.stdout.strip()
