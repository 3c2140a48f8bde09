"""The memory plan over HTTP equals the engine's."""

from __future__ import annotations

from ferrum import load_executor
from ferrum.client.async_engine import AsyncEngine
from ferrum.sources.hub import BUILT_IN
from serve_kit import serving


def test_plan_equals_the_engines() -> None:
    with load_executor(BUILT_IN, kv_capacity=1000, threads=1) as executor:
        plan, capacity = executor.memory_plan, executor.kv_capacity()
    with serving(lambda: AsyncEngine(BUILT_IN, kv_capacity=1000, threads=1, host="process")) as server:
        told = server.http.get("/v1/plan").json()
    exact = ("weights", "activations", "activation_row", "tables", "kv_pool")
    assert {name: told[name] for name in exact} == {name: getattr(plan, name) for name in exact}
    assert told["pool"] == plan.to_dict()["pool"] and told["kv_capacity"] == capacity
    assert told["total"] == sum(told[name] for name in ("weights", "kv_pool", "activations", "tables", "libraries"))
    assert told["fitting"][0] == {"length": 256, "sequences": plan.max_sequences(256)}
