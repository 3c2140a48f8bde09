"""A Ray cluster of this machine with an application of `ferrum deploy`, and its processes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx

ENVIRONMENT = {
    **os.environ,
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",
    "RAY_worker_niceness": "0",
    "RAY_agent_register_timeout_ms": "120000",  # the default of 15 s ends the raylet on a loaded machine
    "RAY_enable_worker_prestart": "0",
}

READY_SECONDS = 240.0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def wait_until_ready(url: str) -> None:
    """Wait until a server answers requests. Raises TimeoutError."""
    until = time.monotonic() + READY_SECONDS
    while time.monotonic() < until:
        try:
            if httpx.get(f"{url}/health").status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.2)
    raise TimeoutError(f"{url} is not ready")


@contextmanager
def plain_server(model: Path, *options: str) -> Iterator[str]:
    """Serve a model with one engine; yield the URL."""
    port = str(free_port())
    server = subprocess.Popen([sys.executable, "-m", "ferrum", "serve", str(model), "--port", port, *options])
    try:
        wait_until_ready(f"http://127.0.0.1:{port}")
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()


class RayCluster:
    """Ray on this machine. Only processes that it started are found and killed.

    Args:
        folder: of Ray's logs and sockets; it names the processes of this cluster.

    Attributes:
        url: of the server.
    """

    def __init__(self, folder: Path) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        self._folder = folder
        self._address = f"127.0.0.1:{free_port()}"
        port = self._address.partition(":")[2]
        arguments = [
            *("--head", f"--port={port}", f"--ray-client-server-port={free_port()}", f"--temp-dir={folder}"),
            *("--num-cpus=4", "--object-store-memory=100000000", "--include-dashboard=false", "--disable-usage-stats"),
        ]
        ray = Path(sys.executable).with_name("ray")
        subprocess.run([ray, "start", *arguments], env=ENVIRONMENT, check=True, stdout=subprocess.DEVNULL)

    def deploy(self, model: Path, replicas: str, *options: str) -> None:
        """Deploy a model, or update the application to it; return when it is deployed."""
        command = [
            *(sys.executable, "-m", "ferrum", "deploy", str(model), "--detach", "--ray-address", self._address),
            *("--port", self.url.rpartition(":")[2], "--replicas", replicas, "--replica-cpus", "0.5", "--threads", "1"),
        ]
        subprocess.run([*command, *options], env=ENVIRONMENT, check=True, stdout=subprocess.DEVNULL)
        wait_until_ready(self.url)

    def wait_for_replicas(self, count: int) -> None:
        """Wait until this number of replicas has an engine. Raises TimeoutError."""
        until = time.monotonic() + READY_SECONDS
        while len(self.engines()) != count:
            if time.monotonic() > until:
                raise TimeoutError(f"{len(self.engines())} engines instead of {count}")
            time.sleep(0.2)
        wait_until_ready(self.url)

    # Processes

    def raylets(self) -> list[int]:
        return self.named(b"/raylet/raylet")

    def named(self, part: bytes) -> list[int]:
        """Return the processes of the cluster whose command has a part."""
        return [each for each in (*self._own(), *self.workers()) if part in _command(each)]

    def workers(self, name: str = "") -> list[int]:
        """Return the actors' processes whose deployment has this name, or all."""
        raylets = set(self.raylets())
        title = f"ray::ServeReplica:ferrum:{name}".encode() if name else b"ray::"
        return [each for each in _ids() if _parent(each) in raylets and _command(each).startswith(title)]

    def engines(self) -> list[int]:
        """Return the processes of engines that replicas started."""
        replicas = set(self.workers("engines"))
        return [each for each in _ids() if _parent(each) in replicas and b"engine_main" in _command(each)]

    def moved(self) -> int:
        """Return the choices that went on in another engine since theirs had ended, by the log of the ingress."""
        logs = (
            each.read_text(errors="replace") for each in self._folder.glob("session_2*/logs/**/*") if each.is_file()
        )
        lines = (line for log in logs for line in log.splitlines() if "choices go on in others" in line)
        return sum(int(line.partition(" choices go on")[0].rpartition(" ")[2]) for line in set(lines))

    def close(self) -> None:
        """Kill all processes of the cluster."""
        for each in (*self.workers(), *self._own()):
            kill(each)

    def _own(self) -> list[int]:
        port = self._address.partition(":")[2]
        marks = str(self._folder).encode(), f":{port}\0".encode()  # Ray's server for clients has only the address
        return [each for each in _ids() if any(mark in _command(each) for mark in marks) and each != os.getpid()]


def kill(process: int) -> None:
    """Kill a process, which may have ended."""
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


def alive(processes: list[int]) -> list[int]:
    """Return the processes that run: what waits for its parent has ended."""
    return [each for each in processes if _command(each)]


def _ids() -> list[int]:
    return [int(each.name) for each in Path("/proc").glob("[0-9]*")]


def _command(process: int) -> bytes:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return b""  # it has ended


def _parent(process: int) -> int:
    try:
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0
