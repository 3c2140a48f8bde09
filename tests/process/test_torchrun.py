"""Ranks that torchrun starts: the answer of one process, and a clear error where they cannot meet."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from tempfile import TemporaryDirectory
from threading import Thread
from types import SimpleNamespace

import pytest

from ferrum.client.client_base import engine_config
from ferrum.core.errors import ConfigError, Unsupported
from ferrum.core.ranks import Launch, launched
from ferrum.runtime import launched_ranks
from ferrum.runtime.launched_ranks import join, joining
from rank_kit import MODEL
from source_tree import REPOSITORY

VARIABLES = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "ferrum")
RUN = ("run", MODEL, "def ", "--max-tokens", "12", "--temperature", "0", "--kv-capacity", "256", "--threads", "1")


def output_of(*command: str) -> tuple[int, str, str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=REPOSITORY, env=environment)
    return ended.returncode, ended.stdout, ended.stderr


def test_processes_of_torchrun_answer_as_one_and_end_with_it() -> None:
    code, answer, errors = output_of(*TORCHRUN, *RUN, "-tp", "2")
    assert code == 0, errors
    assert answer == output_of(sys.executable, "-m", "ferrum", *RUN)[1] != ""


def test_another_degree_than_that_of_torchrun_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FERRUM_TORCHRUN_RANKS", "2")
    with pytest.raises(ConfigError, match="must be 2, the processes that torchrun has started, not 4") as caught:
        engine_config(MODEL, {"tensor_parallel_size": 4})
    assert caught.value.param == "tensor_parallel_size"
    with pytest.raises(ConfigError, match="must be 1 under torchrun"):
        engine_config(MODEL, {"tensor_parallel_size": 2, "replicas": 2})
    assert engine_config(MODEL, {"tensor_parallel_size": 2}).model.tensor_parallel_size == 2


def test_variables_of_torchrun_say_which_rank_a_process_is() -> None:
    assert launched(VARIABLES) == launched({**VARIABLES, "LOCAL_WORLD_SIZE": "2"}) == Launch(1, 2)
    assert launched({}) is launched({**VARIABLES, "WORLD_SIZE": "1"}) is None
    with pytest.raises(ConfigError, match="1 of WORLD_SIZE=2 are here: start torchrun on one machine"):
        launched({**VARIABLES, "LOCAL_WORLD_SIZE": "1"})
    with pytest.raises(ConfigError, match="must be below WORLD_SIZE=2, not 5"):
        launched({**VARIABLES, "RANK": "5"})
    with pytest.raises(ConfigError, match="must be a number, as torchrun sets it, not 'two'"):
        launched({**VARIABLES, "WORLD_SIZE": "two"})


def test_a_busy_port_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(ConfigError) as caught:
        port = server.getsockname()[1]
        for name, value in {**VARIABLES, "RANK": "0", "MASTER_PORT": str(port)}.items():
            monkeypatch.setenv(name, value)
        with joining(2, 0):
            pass
    assert caught.value.param == "MASTER_PORT"
    assert f"cannot meet at 127.0.0.1:{port}" in str(caught.value) and "--master-port" in str(caught.value)


def test_without_pytorch_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(Unsupported, match=r"pip install 'ferrum-llm\[parallel\]'"), joining(2, 0):
        pass


ENDS = (signal.SIGINT, signal.SIGTERM)


def handlers() -> list[object]:
    return [signal.getsignal(number) for number in ENDS]


@pytest.fixture
def own_signals() -> Iterator[None]:
    before = handlers()
    yield
    for number, handler in zip(ENDS, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.usefixtures("own_signals")
def test_signals_end_a_rank_until_it_has_joined_rank_0(monkeypatch: pytest.MonkeyPatch) -> None:
    during = []

    def path_of(key: str) -> bytes:
        during.append(handlers())
        return path.encode()

    def admit() -> None:
        with listener.accept()[0] as end:
            end.recv(8, socket.MSG_WAITALL)
            socket.send_fds(end, [b"\0"], [listener.fileno()])

    def child(rank: int, ranks: int, connection: int, memory: int) -> None:
        during.append(handlers())
        os.close(connection)
        os.close(memory)
        assert (rank, ranks) == (1, 2)

    monkeypatch.setattr(launched_ranks, "_store", lambda _: SimpleNamespace(get=path_of))
    with TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
        path = os.path.join(folder, "socket")  # noqa: PTH118 - text
        listener.bind(path)
        listener.listen()
        rank_0 = Thread(target=admit)
        rank_0.start()
        join(Launch(1, 2), child)
        rank_0.join()
    assert during == [[signal.SIG_DFL] * 2, [signal.SIG_IGN] * 2]
