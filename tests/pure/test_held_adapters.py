"""Which adapters an engine knows, holds and forgets."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any, cast

import pytest

from engine_fakes import greedy
from ferrum.client.adapter_registry import AdapterRegistry, LoRARequest
from ferrum.core.errors import RequestError
from ferrum.core.lora_option import AdapterFacts
from ferrum.core.types import Adapter, Request
from ferrum.engine import held_adapters
from ferrum.engine.held_adapters import HeldAdapters
from ferrum.engine.messages import AdapterRead, Message


class Memory:
    """Adapters in an executor; files always hold what they held."""

    def __init__(self) -> None:
        self.loaded: list[str] = []

    def read_adapter(self, path: str) -> tuple[AdapterFacts, str]:
        return facts_of(path), path

    def load_adapter(self, key: str, prepared: object) -> None:
        self.loaded.append(key)

    def unload_adapter(self, key: str) -> None:
        self.loaded.remove(key)


def facts_of(name: str, *, scales: bool = True) -> AdapterFacts:
    return AdapterFacts(name, name.encode(), nbytes=10, rank=1, scales=scales)


def key(name: str) -> str:
    return facts_of(name).key


def asking(name: str) -> Request:
    return Request(f"for {name}", (1,), greedy(), seed=0, adapters=(Adapter(name, name.encode()),))


class Engine:
    """The part of an engine that holds adapters."""

    def __init__(self) -> None:
        self.memory, self.live, inbox = Memory(), set[str](), SimpleQueue[Message]()
        self.inbox = inbox
        self.held = HeldAdapters(cast(Any, self.memory), inbox, 1000, self.live.__contains__)

    def load(self, name: str) -> None:
        _, reply = self.held.take(AdapterRead((facts_of(name), name), ticket=1))
        assert reply is not None and reply.found == facts_of(name)

    def ask(self, name: str) -> str | None:
        """Begin a request once its adapter is in memory; return an error."""
        request = asking(name)
        if events := self.held.add(request):
            return str(events[0].error)
        if not (ready := self.held.ready()):
            self.held.take(cast(AdapterRead, self.inbox.get(timeout=60)))
            ready = self.held.ready()
        assert [each for each, _ in ready] == [request]
        self.live.add(request.request_id)
        return None

    def end(self, name: str) -> None:
        self.live.remove(f"for {name}")
        self.held.release()


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    monkeypatch.setattr(held_adapters, "KEPT_UNLOADED", 3)
    engine = Engine()
    yield engine
    engine.held.close()


def test_only_the_last_unloaded_adapters_are_known(engine: Engine) -> None:
    names = [f"a{number}" for number in range(20)]
    for name in names:
        engine.load(name)
        engine.held.unload(key(name))
    assert not engine.memory.loaded
    assert [engine.ask(name) is None for name in names] == [False] * 17 + [True] * 3
    assert "no adapter 'a0' is loaded" in str(engine.ask("a0"))
    assert engine.memory.loaded == [key(name) for name in names[17:]]
    for name in names[17:]:
        engine.end(name)
    assert not engine.memory.loaded


def test_adapters_of_requests_stay_known(engine: Engine) -> None:
    engine.load("used")
    assert engine.ask("used") is None
    engine.held.unload(key("used"))
    for number in range(20):
        engine.load(f"a{number}")
        engine.held.unload(key(f"a{number}"))
    assert engine.memory.loaded == [key("used")]
    engine.end("used")
    assert not engine.memory.loaded
    engine.load("used")
    assert engine.memory.loaded == [key("used")] and engine.ask("used") is None


def test_an_adapter_that_is_read_for_an_aborted_request_leaves_memory(engine: Engine) -> None:
    engine.load("a")
    engine.held.unload(key("a"))
    request = asking("a")
    assert not engine.held.add(request) and not engine.held.ready()
    engine.held.waiting.abort(request.request_id)
    engine.held.take(cast(AdapterRead, engine.inbox.get(timeout=60)))
    assert engine.held.counts().loads == 2 and not engine.memory.loaded


def test_an_adapter_that_gets_no_name_is_unloaded() -> None:
    unloaded = list[str]()
    registry = AdapterRegistry(cast(Any, SimpleNamespace(unload_adapter=unloaded.append)))
    with pytest.raises(RequestError, match="must be 1"):
        registry.add("a", facts_of("a", scales=False), scale=0.5)
    assert unloaded == [key("a")] and not len(registry)
    registry.add("a", facts_of("a", scales=False))
    with pytest.raises(RequestError, match="must be 1"):
        registry.add("b", facts_of("a", scales=False), scale=0.5)
    assert unloaded == [key("a")], "it has another name"


class Reader:
    """A router whose engine finds adapters where `locate_adapter` does, hub ids in a cache."""

    def __init__(self, cache: Path) -> None:
        self.cache = cache
        self.loads: list[str] = []

    def load_adapter(self, path: str) -> Future[AdapterFacts]:
        self.loads.append(path)
        found = Path(path).expanduser()
        loading = Future[AdapterFacts]()
        loading.set_result(AdapterFacts(str(found if found.exists() else self.cache), b"a", nbytes=10, rank=1))
        return loading

    def unload_adapter(self, key: str) -> None:
        raise AssertionError(f"{key} is in use")


@pytest.fixture
def adapter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An adapter's directory in the working and home directory, with a link to it and with another one next to it."""
    for name in ("mine", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to("mine")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path / "mine"


SPELLINGS = ["{0}", "{0}/", "mine", "./mine", "mine/../mine", "~/mine", "link", "{0}/../link/"]


@pytest.mark.parametrize("first", [*SPELLINGS, "org/mine", "org/mine@main"])
def test_a_request_names_a_loaded_adapter_by_any_path(adapter: Path, first: str) -> None:
    """vLLM's users make a `LoRARequest` for each call."""
    reader = Reader(cache=adapter)
    registry = AdapterRegistry(cast(Any, reader))
    for spelling in (first, first, *SPELLINGS, ""):
        (found,) = registry.chosen(LoRARequest("a", 1, spelling.format(adapter)))
        assert found.name == "a"
    assert len(reader.loads) == 1 and (Path(reader.loads[0]).is_absolute() or first.startswith("org/"))
    for other in ("other", "~/other", "org/other", "nowhere"):
        with pytest.raises(RequestError, match="is loaded from") as caught:
            registry.chosen(LoRARequest("a", 1, other))
        assert caught.value.param == "lora_path"
    with pytest.raises(RequestError, match="must be a string") as caught:
        registry.chosen(LoRARequest("a", 1, cast(str, adapter)))
    assert caught.value.param == "lora_path"


def test_a_link_that_leads_elsewhere_is_another_adapter(adapter: Path) -> None:
    registry = AdapterRegistry(cast(Any, Reader(cache=adapter)))
    link = adapter.with_name("link")
    registry.chosen(LoRARequest("a", 1, str(link)))
    link.unlink()
    link.symlink_to("other")
    with pytest.raises(RequestError, match="is loaded from"):
        registry.chosen(LoRARequest("a", 1, str(link)))
