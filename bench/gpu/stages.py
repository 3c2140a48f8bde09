"""A stage of `run.py`: `python bench/gpu/stages.py NAME`. Each result is a line of JSON on stdout."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
SITE: Final = ROOT / "build" / "gpu" / "site"

PACKAGES: Final = ("nanobind", "ml_dtypes", "safetensors", "tokenizers", "huggingface_hub", "jinja2", "typer", "rich")


def say(name: str, value: Any, unit: str = "", **others: Any) -> None:
    """Report a result. `ok` in `others` says whether it is right."""
    result = {"name": name, "value": value, **({"unit": unit} if unit else {}), **others}
    print(json.dumps(result), flush=True)


# ---- What the machine is ----


def facts(emulated: bool) -> None:
    """Report the device, and what copies, launches and nodes of a graph cost."""
    query = "name,driver_version,memory.total,clocks.max.sm,clocks.max.memory,power.limit"
    for name, command in {
        "nvidia-smi": ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"],
        "nvcc": ["nvcc", "--version"],
        "cmake": ["cmake", "--version"],
        "compute-sanitizer": ["compute-sanitizer", "--version"],
    }.items():
        say(name, _last_line(command))
    for package in ("numpy", "torch", "transformers", "nanobind", "scikit_build_core"):
        say(package, "present" if find_spec(package) else "missing")
    say("headers of Python", (Path(sysconfig.get_paths()["include"]) / "Python.h").exists())
    from device_costs import report

    report(say, emulated)


def _last_line(command: list[str]) -> str:
    if shutil.which(command[0]) is None:
        return "missing"
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return (done.stdout.strip() or done.stderr.strip() or "silent").splitlines()[-1]


# ---- The native library ----


def build(wheels: Path | None) -> None:
    """Copy ferrum to the folder of this run, and compile its native library there."""
    shutil.rmtree(SITE.parent, ignore_errors=True)
    shutil.copytree(ROOT / "src" / "ferrum", SITE / "ferrum", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    if wheels is not None:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", str(SITE)]
        _run([*pip, *(str(path) for path in wheels.glob("*.whl") if not path.name.startswith("numpy-"))])
    sys.path.insert(0, str(SITE))
    for package in PACKAGES:
        say(package, "present" if find_spec(package) else "missing")
    made = SITE.parent / "native"
    prefix = f"-DCMAKE_PREFIX_PATH={SITE / 'nanobind' / 'cmake'}"
    ninja = ["-G", "Ninja"] if shutil.which("ninja") else []
    python = f"-DPython_EXECUTABLE={sys.executable}"
    _run(["cmake", "-S", str(ROOT / "native"), "-B", str(made), *ninja, prefix, python])
    _run(["cmake", "--build", str(made), "--parallel"])
    _run(["cmake", "--install", str(made), "--prefix", str(SITE)])
    library = subprocess.run(
        [sys.executable, "-c", "from ferrum.kernels.cpu.library import load; print(load().tiers()[0])"],
        capture_output=True,
        text=True,
        check=False,
        cwd=SITE,
    )
    say("native library", library.stdout.strip() or library.stderr.strip()[-300:], ok=library.returncode == 0)


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        say(" ".join(command[:3]), (done.stdout + done.stderr)[-2000:], ok=False)
        sys.exit(1)


def compile_kernels() -> None:
    """Compile every module for the device, several at a time."""
    from cuda_code import modules
    from ferrum.kernels.cuda.device_code import DeviceCode, compiler_version
    from ferrum.kernels.cuda.driver import Driver

    say("NVRTC", compiler_version())
    code = DeviceCode(Driver(0).capability)

    def timed(module: str) -> tuple[float, str]:
        begun = time.perf_counter()
        code.image(module)
        return time.perf_counter() - begun, module

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        taken = list(pool.map(timed, modules()))
    say("modules", len(taken), slowest=max(taken))


# ---- All stages ----


def races(emulated: bool) -> None:
    """Run a few checks under compute-sanitizer, if it is there."""
    few = [sys.executable, __file__, "few", *(["--emulated"] if emulated else [])]
    for tool in ("racecheck", "memcheck"):
        if shutil.which("compute-sanitizer") is None:
            say(tool, "compute-sanitizer is missing")
            continue
        command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", *few]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        say(tool, done.stdout.strip().splitlines()[-1], ok=done.returncode == 0)


def stages(options: argparse.Namespace) -> dict[str, Callable[[], None]]:
    """Return the stages by name. Modules of the later ones need what `build` makes."""
    if options.stage == "facts":
        return {"facts": lambda: facts(options.emulated)}
    if options.stage == "build":
        return {"build": lambda: say("build", "not needed") if options.emulated else build(options.wheels)}
    if options.stage == "compile":
        return {"compile": (lambda: say("compile", "not needed")) if options.emulated else compile_kernels}
    if options.stage == "races":
        return {"races": lambda: races(options.emulated)}
    import correctness
    import speed

    device = correctness.Device(emulated=options.emulated, say=say)
    return {
        "selfcheck": device.selfcheck,
        "few": device.few,
        "golden": device.golden,
        "spans": device.spans,
        "engine": device.engine,
        "speed": lambda: speed.on_device(say, options.emulated),
        "peers": lambda: speed.peers(say, options.emulated),
        "cpu": lambda: speed.on_cpu(say, options.emulated),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stage")
    parser.add_argument("--emulated", action="store_true")
    parser.add_argument("--wheels", type=Path)
    options = parser.parse_args()
    if options.emulated:
        from emulation import use_emulated_device

        use_emulated_device()
    try:
        stages(options)[options.stage]()
    except Exception as error:  # noqa: BLE001 - one stage must not hide the others
        traceback.print_exc()
        say("error", f"{type(error).__name__}: {error}", ok=False)


if __name__ == "__main__":
    main()
