#!/usr/bin/env python3
"""Check an installed wheel with the Python that runs this: the native kernels, the command, the server, the types.

Runs outside the checkout, so that nothing is imported from it. `make wheel` and cibuildwheel call it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request, urlopen

PORT = 8765
URL = f"http://127.0.0.1:{PORT}"
COMMAND = [sys.executable, "-m", "ferrum"]


def ferrum(*arguments: str) -> str:
    """Run a command and return its standard output."""
    return subprocess.run([*COMMAND, *arguments], check=True, stdout=subprocess.PIPE, text=True).stdout


def check_server() -> None:
    """Serve the built-in model, complete a prompt over HTTP, and stop the server."""
    server = subprocess.Popen([*COMMAND, "serve", "--port", str(PORT)], stderr=subprocess.DEVNULL)
    try:
        for _ in range(300):
            try:
                urlopen(f"{URL}/health")
                break
            except URLError:
                time.sleep(0.2)
        body = json.dumps({"model": "ferrum-tiny", "prompt": "def f(", "max_tokens": 4}).encode()
        reply = json.load(urlopen(Request(f"{URL}/v1/completions", body, {"content-type": "application/json"})))
        assert reply["usage"]["completion_tokens"] > 0, reply
    finally:
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0


def main() -> None:
    """Run all checks; an exception is a failure."""
    os.chdir(tempfile.mkdtemp())
    package = Path(str(files("ferrum")))
    assert "site-packages" in package.parts, f"ferrum is imported from {package}, not from a wheel"
    assert (package / "py.typed").is_file()
    assert any(package.rglob("_native*")), "the wheel has no native kernels"
    assert version("ferrum-llm") in ferrum("--version")
    print(ferrum("selfcheck"))  # fails if a tier computes other bits
    assert ferrum("run", "ferrum-tiny", "def f(", "--max-tokens", "4", "--kernels", "native", "--seed", "1")
    check_server()
    print(f"ferrum-llm {version('ferrum-llm')}: the wheel works on Python {sys.version.split()[0]}")


if __name__ == "__main__":
    main()
