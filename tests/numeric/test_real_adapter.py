"""The adapter that `training/train_adapter.py` made for SmolLM2, on orders that it has not seen."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from ferrum import LLM, SamplingParams
from real_model import real_model

ADAPTER = Path(__file__).parents[1] / "data" / "adapters" / "smollm2-orders"
ORDERS = {
    "Could Marta get nine books by Friday?": {"name": "Marta", "item": "books", "count": 9},
    "Please send two lamps to Ruth.": {"name": "Ruth", "item": "lamps", "count": 2},
}
GREEDY = SamplingParams(temperature=0, max_tokens=40)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(str(real_model()), lora=[f"orders={ADAPTER}"], kv_capacity=8192) as llm:
        yield llm


def answers(llm: LLM, orders: list[str], adapters: list[str | None]) -> list[str]:
    conversations = [[{"role": "user", "content": order}] for order in orders]
    outputs = llm.chat(conversations, GREEDY, use_tqdm=False, lora_request=adapters)
    return [output.outputs[0].text for output in outputs]


def test_orders_become_json_next_to_the_base_model(llm: LLM) -> None:
    orders = list(ORDERS)
    mixed = answers(llm, [*orders, *orders], ["orders", "orders", None, None])
    assert [json.loads(text) for text in mixed[:2]] == list(ORDERS.values())
    assert all("{" not in text for text in mixed[2:])
    assert mixed == [answers(llm, [order], [use])[0] for use in ("orders", None) for order in orders]
