"""Replicas on Ray Serve: streams over all dialects while replicas are killed, drained and updated (`make test-ray`)."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest

from ray_streams import Stream, result_of, streams
from source_tree import REPOSITORY
from tiny_with_tokenizer import spoken

pytestmark = pytest.mark.ray

KILLS = 20
COUNT = 50
ENVIRONMENT = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled", "RAY_worker_niceness": "0"}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def processes(word: str) -> list[int]:
    """Return the ids of processes whose command line has a word."""
    found = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if word.encode() in each.read_bytes():
                found.append(int(each.parent.name))
        except OSError:
            continue  # it has ended
    return found


class Deployed:
    """An application on a Ray cluster of this machine.

    Attributes:
        url: of the server.
    """

    def __init__(self, model: Path, folder: Path, replicas: str) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        self._folder, self._replicas = folder, replicas
        self._address = f"127.0.0.1:{free_port()}"
        self._ray("start", "--head", f"--port={self._address.partition(':')[2]}", "--node-ip-address=127.0.0.1",
                  "--num-cpus=4", "--object-store-memory=100000000", "--include-dashboard=false",
                  f"--temp-dir={folder}", "--disable-usage-stats")  # fmt: skip
        self.deploy(model)
        self.wait(2 if replicas == "2" else 1)

    def _ray(self, *arguments: str) -> None:
        subprocess.run([Path(sys.executable).with_name("ray"), *arguments], env=ENVIRONMENT, check=True)

    def deploy(self, model: Path, *options: str) -> None:
        """Deploy a model, or update the application to it."""
        command = [
            *(sys.executable, "-m", "ferrum", "deploy", str(model), "--detach", "--ray-address", self._address),
            *("--port", self.url.rpartition(":")[2], "--replicas", self._replicas, "--replica-cpus", "1"),
            *("--threads", "1", "--dtype", "float32", "--served-model-name", "tiny", "--drain-seconds", "60"),
        ]
        subprocess.run([*command, *options], env=ENVIRONMENT, check=True)

    def wait(self, replicas: int) -> None:
        """Wait until so many replicas run and the server is ready."""
        until = time.monotonic() + 600
        while time.monotonic() < until:
            try:
                if httpx.get(f"{self.url}/health").status_code == 200 and len(self.replicas()) >= replicas:
                    return
            except httpx.HTTPError:
                pass
            time.sleep(0.5)
        raise TimeoutError("the application is not ready")

    @staticmethod
    def replicas() -> list[int]:
        return processes("ray::ServeReplica:ferrum:engines")

    def close(self) -> None:
        for each in processes(str(self._folder)):
            os.kill(each, signal.SIGKILL)
        until = time.monotonic() + 60
        while (left := processes("ferrum.engine.engine_main import child")) and time.monotonic() < until:
            time.sleep(0.5)
        assert not left, "engines outlive Ray"


@pytest.fixture(scope="module")
def model() -> Path:
    return spoken("qwen3")


@pytest.fixture(scope="module")
def expected(model: Path) -> list[Any]:
    """The results of a server with one engine, undisturbed."""
    port = str(free_port())
    options = ("--dtype", "float32", "--served-model-name", "tiny", "--port", port)
    server = subprocess.Popen([sys.executable, "-m", "ferrum", "serve", str(model), *options], env=ENVIRONMENT)
    try:
        url = f"http://127.0.0.1:{port}"
        while True:
            try:
                if httpx.get(f"{url}/health").status_code == 200:
                    break
            except httpx.HTTPError:
                time.sleep(0.2)
        return [result_of(each, url) for each in streams(COUNT)]
    finally:
        server.terminate()
        server.wait()


@pytest.fixture(scope="module")
def deployed(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    found = Deployed(model, tmp_path_factory.mktemp("ray"), "2")
    yield found
    found.close()


@contextmanager
def meanwhile(disturb: Callable[[threading.Event], None]) -> Iterator[None]:
    """Disturb a deployment until the block ends."""
    over = threading.Event()
    thread = threading.Thread(target=disturb, args=(over,))
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def results(deployed: Deployed) -> list[Any]:
    def one(stream: Stream) -> Any:
        return result_of(stream, deployed.url)

    with ThreadPoolExecutor(16) as pool:
        return list(pool.map(one, streams(COUNT), timeout=900))


@pytest.mark.timeout(3600)
def test_streams_are_those_of_an_undisturbed_run_while_replicas_are_killed(
    deployed: Deployed, expected: list[Any]
) -> None:
    pick, kills = Random(1), 0

    def kill(over: threading.Event) -> None:
        nonlocal kills
        while not over.wait(pick.uniform(0.2, 3.0)):
            if found := deployed.replicas():
                os.kill(pick.choice(found), signal.SIGKILL)
                kills += 1

    while kills < KILLS:
        with meanwhile(kill):
            assert results(deployed) == expected
        deployed.wait(1)
    deployed.wait(2)


@pytest.mark.timeout(3600)
def test_an_update_to_the_same_weights_changes_no_stream(deployed: Deployed, expected: list[Any], model: Path) -> None:
    with meanwhile(lambda _: deployed.deploy(model)):
        assert results(deployed) == expected


@pytest.mark.timeout(3600)
def test_nothing_is_left_after_raylet_and_ingress_are_killed(deployed: Deployed) -> None:
    endless = {"model": "tiny", "prompt": "x", "max_tokens": 100_000, "ignore_eos": True, "stream": True}
    for word in ("ray::ServeReplica:ferrum:ingress", "raylet/raylet"):
        deployed.wait(1)
        with (
            pytest.raises(httpx.HTTPError),
            httpx.stream("POST", f"{deployed.url}/v1/completions", json=endless, timeout=120) as reply,
        ):
            for line in reply.iter_lines():
                assert '"error"' not in line
                for each in processes(word):
                    os.kill(each, signal.SIGKILL)
        assert REPOSITORY.exists()
        if word.startswith("raylet"):
            deployed.close()
