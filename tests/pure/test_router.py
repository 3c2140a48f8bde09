"""Between an engine's reports and the streams of its clients."""

from __future__ import annotations

from engine_fakes import admission, greedy
from ferrum.core.types import TokenEvent
from ferrum.engine.host import Deliver
from ferrum.engine.messages import EngineInfo, EngineStats, Events, Message
from ferrum.engine.router import Router, Wake


class Host:
    """A host whose engine is the test."""

    deliver: Deliver

    def start(self, deliver: Deliver) -> EngineInfo:
        self.deliver = deliver
        return EngineInfo("fake", 97, 4096, 4096, "fake-1")

    def send(self, message: Message) -> None:
        pass

    def close(self) -> None:
        pass


def test_who_gets_a_first_token_is_woken_before_those_who_go_on() -> None:
    host, woken = Host(), list[str]()

    def wake_all(wakes: list[Wake]) -> None:
        for wake in wakes:
            wake()

    router = Router(host, wake_all=wake_all)  # type: ignore[arg-type]
    streams = {
        name: router.open(admission().admit([1], greedy(), request_id=name), None, lambda name=name: woken.append(name))  # type: ignore[misc]
        for name in "abcd"
    }

    def step(names: str) -> list[str]:
        woken.clear()
        host.deliver(Events(tuple(TokenEvent(name, 0, (5,)) for name in names), EngineStats()))
        for name in names:
            assert streams[name].take() is not None
        return list(woken)

    assert step("ab") == ["a", "b"]
    assert step("abcd") == ["c", "d", "a", "b"]
    assert step("abcd") == ["a", "b", "c", "d"]
