"""Ten minutes on a machine with a GPU: what it is, whether ferrum's kernels are right there, and how fast they are.

    python bench/gpu/run.py --wheels build/gpu-wheels --out gpu.json
    python bench/gpu/run.py --emulated --only selfcheck spans

Every stage is a process with a time limit. A result is one line of JSON, written at once, so that a run that is cut off
leaves what it found; a table of all comes last. `--emulated` runs the stages on the emulated device, with tiny sizes.

The machine needs Python, numpy, a C++ compiler, CMake, ninja, Python's headers, and NVRTC (torch brings one), but no
package index. What else ferrum imports is carried there. Download it before, for the machine's version of Python:

    pip download --dest build/gpu-wheels --only-binary :all: --python-version 3.12 --platform manylinux_2_28_x86_64 \\
        --platform manylinux2014_x86_64 nanobind ml_dtypes safetensors tokenizers huggingface_hub jinja2 typer rich

The stage `build` installs these next to a copy of ferrum in build/gpu, and compiles the native library with CMake. The
stage `compile` compiles all kernels for the device, so that no later stage waits for NVRTC.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from textwrap import shorten
from typing import Any, Final, TextIO

_WIDTH: Final = 100
"""Longest text in the table; JSON has the whole."""

FOLDER: Final = Path(__file__).resolve().parent
ROOT: Final = FOLDER.parents[1]
SITE: Final = ROOT / "build" / "gpu" / "site"
"""Where the stage `build` puts ferrum and what it imports."""

LIMITS: Final = {
    "facts": 60,
    "build": 200,
    "compile": 120,
    "selfcheck": 90,
    "golden": 90,
    "spans": 60,
    "races": 90,
    "engine": 60,
    "speed": 240,
    "peers": 90,
    "cpu": 90,
}
"""The stages in their order, and the most seconds of each."""

_SLOWER: Final = 4
"""Time of a stage on the emulated device, as a multiple."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--emulated", action="store_true", help="the emulated device, with tiny sizes")
    parser.add_argument("--only", nargs="+", choices=LIMITS, default=[*LIMITS], help="stages to run (default: all)")
    parser.add_argument("--wheels", type=Path, help="folder of wheels that ferrum needs")
    parser.add_argument("--seconds", type=float, default=590, help="time for all stages (default: 590)")
    parser.add_argument("--out", type=Path, help="file for the lines of JSON")
    options = parser.parse_args()
    ends, found = time.monotonic() + options.seconds, list[dict[str, Any]]()
    with (options.out or Path(os.devnull)).open("w", encoding="utf-8") as out:
        for stage in (each for each in LIMITS if each in options.only):
            limit = min(LIMITS[stage] * (_SLOWER if options.emulated else 1), ends - time.monotonic())
            for result in run_stage(stage, limit, options) if limit > 0 else [failed(stage, "no time is left")]:
                found.append(result)
                _write(result, out, sys.stdout)
    print()
    print(table(found))
    return int(any(result.get("ok") is False for result in found))


def run_stage(stage: str, limit: float, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the results of a stage as they come; the last one has its seconds, or why it failed."""
    given = ["--emulated"] * options.emulated + (["--wheels", str(options.wheels)] if options.wheels else [])
    command = [sys.executable, str(FOLDER / "stages.py"), stage, *given]
    paths = [str(FOLDER.parent), str(ROOT / "tests" / "support"), os.environ.get("PYTHONPATH", "")]
    if not options.emulated:
        paths = [str(SITE) if SITE.exists() else str(ROOT / "src"), *paths]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    begun = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True, start_new_session=True)
    killer = subprocess.Popen([sys.executable, "-c", _KILLER, str(process.pid), str(limit)])
    assert process.stdout is not None
    with process.stdout as lines:
        for line in lines:
            with suppress(ValueError):
                yield {"stage": stage, **json.loads(line)}
    code = process.wait()
    killer.terminate()
    killer.wait()
    seconds = round(time.monotonic() - begun, 1)
    if code == -signal.SIGKILL and seconds >= limit:
        yield failed(stage, f"stopped after {limit:.0f} seconds")
    elif code:
        yield failed(stage, f"exit code {code}")
    else:
        yield {"stage": stage, "name": "seconds", "value": seconds}


_KILLER: Final = """
import os, signal, sys, time
time.sleep(float(sys.argv[2]))
os.killpg(int(sys.argv[1]), signal.SIGKILL)
"""
"""Ends a stage, with its own processes, after its time."""


def failed(stage: str, reason: str) -> dict[str, Any]:
    """Return the result of a stage that did not end."""
    return {"stage": stage, "name": "failed", "value": reason, "ok": False}


def table(results: list[dict[str, Any]]) -> str:
    """Return results as lines; those that are wrong have a mark."""
    rows = [
        (result["stage"], result["name"], f"{_shown(result['value'])} {result.get('unit', '')}".strip(), _mark(result))
        for result in results
    ]
    widths = [max((len(row[i]) for row in rows), default=0) for i in range(3)]
    return "\n".join("  ".join([*map(str.ljust, row[:3], widths), row[3]]).rstrip() for row in rows)


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.1f}" if value >= 1000 else f"{value:.4g}"
    return shorten(str(value), _WIDTH, placeholder=" ...")


def _mark(result: dict[str, Any]) -> str:
    return {True: "right", False: "WRONG", None: ""}[result.get("ok")]


def _write(result: dict[str, Any], *files: TextIO) -> None:
    for file in files:
        print(json.dumps(result), file=file, flush=True)


if __name__ == "__main__":
    sys.exit(main())
