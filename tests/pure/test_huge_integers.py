"""Integers of thousands of digits, which Python refuses to write, are refused by name like other bad values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from fractions import Fraction
from typing import Any

import pytest

from contract_kit import make_fake
from engine_fakes import greedy, input_processor
from ferrum.client.input_processor import RequestOptions
from ferrum.core.config import EngineConfig, ModelConfig
from ferrum.core.errors import RequestError
from ferrum.core.params import SamplingParams
from ferrum.core.step import Score, StepBatch, Want
from ferrum.core.values import is_huge, shown
from ferrum.server.server_config import ServerConfig
from ferrum.verbs.io_types import DecodeInput, PrefillInput, UnifiedBatch, UnifiedBatchItem
from span_kit import span_of

HUGE = 10**5000
FORMS = {
    "it": HUGE,
    "negative": -HUGE,
    "listed": [HUGE],
    "key": {HUGE: 1},
    "value": {1: HUGE},
    "part": Fraction(HUGE, 3),
}

MODEL = ModelConfig(model="m")
RECORDS: dict[type, dict[str, Any]] = {
    SamplingParams: {},
    ModelConfig: {"model": "m"},
    EngineConfig: {"model": MODEL},
    ServerConfig: {},
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("record", "name"), [(record, each.name) for record in RECORDS for each in fields(record)])
def test_options_refuse_huge_integers(record: type, name: str, form: str) -> None:
    with pytest.raises(RequestError) as caught:
        record(**{**RECORDS[record], name: FORMS[form]})
    assert caught.value.param == name and len(str(caught.value)) < 300


def span(**given: Any) -> None:
    submit = make_fake().executor.submit
    for each in ({"start": 0}, {"start": 1, **given}):
        one = span_of({"cache_id": "a", "tokens": (1,), "want": Want.NONE, **each})
        (result,) = submit(StepBatch((one,))).result().results
    if isinstance(result, Exception):
        raise result


def unified(**given: Any) -> None:
    item = UnifiedBatchItem(**{"seq_id": "a", "q_tokens": [1], "pos_offset": 0, **given})
    make_fake().executor.unified_decode(UnifiedBatch((item,)))


def prefill(**given: Any) -> None:
    make_fake().executor.prefill(PrefillInput(**{"input_ids": [1], **given}))


def decode(**given: Any) -> None:
    executor = make_fake().executor
    handle = executor.prefill(PrefillInput([1])).kv_cache
    executor.decode(DecodeInput(**{"input_ids": [1], "kv_cache": handle, **given}))


def admit(*, prompt: Any = (1,), **given: Any) -> None:
    input_processor(prioritised=True).process(prompt, greedy(), RequestOptions(**given))


def truncate(**given: Any) -> None:
    executor = make_fake().executor
    executor.truncate_kv(executor.prefill(PrefillInput([1])).kv_cache, **given)


@pytest.mark.parametrize("number", [HUGE, -HUGE], ids=["positive", "negative"])
@pytest.mark.parametrize(
    ("use", "name", "form"),
    [
        (span, "cache_id", "{}"),
        (span, "start", "{}"),
        (span, "drafts", "{}"),
        (span, "tokens", "[{}]"),
        (span, "score", "Score"),
        (unified, "pos_offset", "{}"),
        (unified, "q_tokens", "[{}]"),
        (unified, "logits_policy", "{}"),
        (prefill, "input_ids", "[{}]"),
        (prefill, "logits", "{}"),
        (prefill, "position_ids", "[{}]"),
        (prefill, "attention_mask", "[{}]"),
        (decode, "input_ids", "{}"),
        (decode, "position_ids", "[{}]"),
        (truncate, "new_len", "{}"),
        (admit, "prompt", "[{}]"),
        (admit, "prediction", "[{}]"),
        (admit, "priority", "{}"),
        (admit, "deadline", "{}"),
        (admit, "request_id", "{}"),
    ],
)
def test_entry_points_refuse_huge_integers(use: Callable[..., None], name: str, form: str, number: int) -> None:
    with pytest.raises(RequestError) as caught:
        use(**{name: _formed(form, number)})
    assert caught.value.param == name and len(str(caught.value)) < 300


def _formed(form: str, number: int) -> Any:
    return {"{}": number, "[{}]": [number], "Score": Score([number], 0)}[form]


def test_messages_quote_values_briefly() -> None:
    class Unwritable:
        def __repr__(self) -> str:
            raise ValueError

    assert (shown(HUGE), shown([-HUGE]), shown(2**255)) == ("about 10**5000", "[about -10**5000]", str(2**255))
    assert is_huge(2**256) and is_huge(-(2**256)) and not is_huge(2**256 - 1) and not is_huge(1e300)
    assert shown("last") == "'last'" and shown(None) == "None" and "Unwritable" in shown(Unwritable())
    assert len(shown("a" * 10_000)) <= 200 and len(shown(list(range(10_000)))) < 200
