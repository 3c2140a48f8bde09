"""A fake hub on this machine: the requests of `huggingface_hub` for a snapshot, and their errors."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from huggingface_hub import constants
from huggingface_hub.utils import close_session

CACHE_VARIABLES = ("LLAMA_CACHE", "OLLAMA_MODELS", "XDG_CACHE_HOME", "FERRUM_MODELS_DIR")
"""Variables that name caches of other programs."""

CLOSED = "http://127.0.0.1:9"
"""An address on which no hub listens."""


@dataclass
class FakeRepo:
    files: dict[str, bytes]
    gated: bool = False
    revisions: tuple[str, ...] = ("main", "v1.0")

    @property
    def commit(self) -> str:
        return hashlib.sha1(repr(sorted(self.files.items())).encode()).hexdigest()


@dataclass
class FakeHub:
    """A fake hub. `break_after`: bytes by file before the connection drops; `breaks`: how many times."""

    repos: dict[str, FakeRepo]
    url: str = ""
    requests: list[str] = field(default_factory=list)
    break_after: dict[str, int] = field(default_factory=dict)
    breaks: int = 0
    status: int | None = None

    def seen(self, method: str) -> list[str]:
        return [request for request in self.requests if request.startswith(method)]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def answer(self) -> None:
        hub = self.server.hub
        path = self.path.partition("?")[0]
        hub.requests.append(f"{self.command} {path} {self.headers.get('Range', '')}".strip())
        parts = path.strip("/").split("/")
        if hub.status is not None:
            self.refuse(hub.status, "")
        elif parts[:2] == ["api", "models"]:
            self.api("/".join(parts[2:4]), *parts[4:6])
        else:
            self.file("/".join(parts[:2]), parts[3], "/".join(parts[4:]))

    def repo(self, name: str, revision: str) -> FakeRepo | None:
        repo = self.server.hub.repos.get(name)
        if repo is None:
            self.refuse(401, "RepoNotFound")
        elif revision not in (*repo.revisions, repo.commit):
            self.refuse(404, "RevisionNotFound")
            repo = None
        return repo

    def api(self, name: str, verb: str, revision: str) -> None:
        repo = self.repo(name, revision)
        if repo is None:
            return
        if verb == "revision":
            siblings = [{"rfilename": file} for file in repo.files]
            answer: object = {"id": name, "modelId": name, "sha": repo.commit, "siblings": siblings}
        else:
            answer = [
                {"type": "file", "path": file, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                for file, data in repo.files.items()
            ]
        self.send(json.dumps(answer).encode(), {"Content-Type": "application/json"})

    def file(self, name: str, revision: str, file: str) -> None:
        repo = self.repo(name, revision)
        if repo is None:
            return
        if repo.gated or file not in repo.files:
            self.refuse(*((403, "GatedRepo") if repo.gated else (404, "EntryNotFound")))
            return
        data = repo.files[file]
        headers = {"ETag": f'"{hashlib.sha1(data).hexdigest()}"', "X-Repo-Commit": repo.commit}
        begin = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")[0])
        if begin:
            headers["Content-Range"] = f"bytes {begin}-{len(data) - 1}/{len(data)}"
        self.send(data[begin:], headers, status=206 if begin else 200, file=file)

    def send(self, data: bytes, headers: dict[str, str], status: int = 200, file: str = "") -> None:
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        hub = self.server.hub
        if file in hub.break_after and hub.breaks:
            hub.breaks -= 1
            data = data[: hub.break_after[file]]
            self.close_connection = True
        self.wfile.write(data)

    def refuse(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, hub: FakeHub) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.hub = hub
        hub.url = f"http://127.0.0.1:{self.server_port}"


@contextmanager
def serve(repos: dict[str, FakeRepo]) -> Iterator[FakeHub]:
    server = _Server(FakeHub(repos))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server.hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def hub_of(repos: dict[str, FakeRepo], folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """Redirect this process's `huggingface_hub` to a fake hub, with a cache in the folder and short timeouts."""
    with serve(repos) as hub, redirected(hub.url, folder, monkeypatch):
        yield hub


@contextmanager
def redirected(url: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Redirect this process's `huggingface_hub` to an address, with a cache and a home in the folder."""
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder / "cache"))
    monkeypatch.setenv("HOME", str(folder / "home"))
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "HF_TOKEN", *CACHE_VARIABLES):
        monkeypatch.delenv(name, raising=False)
    close_session()
    yield
    close_session()
