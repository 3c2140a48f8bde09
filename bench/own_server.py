"""`ferrum serve` in a child process, for scripts that measure it, and model directories of random weights."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from ferrum.bench.shapes import shape_config
from ferrum.core.errors import EngineDead
from ferrum.sources.random_checkpoint import RandomCheckpoint
from ferrum.sources.tensor_file import file_header
from script import needs

with needs("'ferrum-llm[server]'"):
    from ferrum.bench.serve_client import NoConnection, RequestFailed, get_json

START_SECONDS: Final = 600.0
"""Time limit for a server to become ready."""
STOP_SECONDS: Final = 30.0

_LOG_TAIL: Final = 2000


@dataclass(frozen=True, slots=True)
class OwnServer:
    """A ready server: scheme, host and port, and its process."""

    address: str
    pid: int

    @property
    def url(self) -> str:
        """The base URL for clients."""
        return f"{self.address}/v1"


@contextmanager
def own_server(model: str, options: Sequence[str]) -> Iterator[OwnServer]:
    """Serve a model inside the block.

    Args:
        model: argument of `ferrum serve`.
        options: options of `ferrum serve`.

    Raises:
        EngineDead: the server did not start; the message has the end of its log.
    """
    port = _free_port()
    address = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "ferrum", "serve", model, "--port", str(port), *options]
    with tempfile.TemporaryFile() as log, subprocess.Popen(command, stdout=log, stderr=log) as server:
        try:
            if not _ready(address, server):
                log.seek(0)
                tail = log.read()[-_LOG_TAIL:].decode(errors="replace")
                raise EngineDead(f"the server did not start: {tail}")
            yield OwnServer(address, server.pid)
        finally:
            server.terminate()
            try:
                server.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                server.kill()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _ready(url: str, server: subprocess.Popen[bytes]) -> bool:
    """Wait until the server answers; False if it exited or timed out."""
    until = time.monotonic() + START_SECONDS
    while server.poll() is None and time.monotonic() < until:
        try:
            asyncio.run(get_json(url, "/ready"))
        except (*NoConnection, RequestFailed):
            time.sleep(0.05)
        else:
            return True
    return False


@dataclass(frozen=True, slots=True)
class Subject:
    """A model to serve: its name in reports, and the argument of `ferrum serve`."""

    name: str
    model: str


@contextmanager
def subject_of(model: str, shape: str | None) -> Iterator[Subject]:
    """Yield a model, or a temporary directory of random weights of a shape.

    Raises:
        ConfigError: there is no such shape.
    """
    if shape is None:
        yield Subject(model, model)
        return
    config = shape_config(shape)
    with tempfile.TemporaryDirectory(prefix="ferrum-bench-") as directory:
        write_shape(shape, config, Path(directory))
        yield Subject(shape, directory)


def write_shape(name: str, config: Mapping[str, Any], directory: Path) -> None:
    """Write a model directory of random weights; every token is a text, so each one shows in a stream."""
    checkpoint = RandomCheckpoint(name, config)
    with (directory / "model.safetensors").open("wb") as file:
        file.write(file_header((tensor, i.dtype, i.shape, i.nbytes) for tensor, i in checkpoint.tensors.items()))
        for tensor in checkpoint.tensors:
            file.write(checkpoint.read(tensor).view(np.uint8).data)
    (directory / "config.json").write_text(json.dumps(dict(config)))
    vocabulary = {f"w{index} ": index for index in range(config["vocab_size"])}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [],
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "w0 "},
        "decoder": {"type": "Fuse"},
    }
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
