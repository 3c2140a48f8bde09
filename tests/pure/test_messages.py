"""Messages are pickled without loss, and joined deltas keep all data."""

from __future__ import annotations

import pickle
from dataclasses import fields, replace
from typing import Any

import pytest

from ferrum.client.request_output import Delta, Usage, join
from ferrum.core.errors import NonFiniteLogits
from ferrum.core.snapshots import PrefixCounts, SpeculationCounts
from ferrum.core.step import TokenLogprobs
from ferrum.core.types import FinishReason, TokenEvent
from ferrum.engine.messages import EngineStats, Events
from ferrum.formats.output_parts import Part, PartKind

LOGPROBS = TokenLogprobs(3, -0.5, 2, ((1, -0.25), (3, -0.5)))
EVENT = TokenEvent("r", 1, (2, 3), (LOGPROBS,), (LOGPROBS,), FinishReason.STOP, 7, 5, None, "t", 1.5, 2, (0.5, 1.0))
STATS = EngineStats(1, 2, 0.5, 3, PrefixCounts(1, 2, 3, 4, 5, 6, 7, 8), SpeculationCounts(1, 2, 3, (4,)), (5, 6))


@pytest.mark.parametrize("message", [LOGPROBS, EVENT, STATS, Events((EVENT, EVENT), STATS)])
def test_every_field_of_a_message_is_pickled(message: Any) -> None:
    crossed = pickle.loads(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))
    assert type(crossed) is type(message)
    # Includes dataclass fields that comparison ignores.
    for name in message._fields if isinstance(message, tuple) else [each.name for each in fields(message)]:
        assert getattr(crossed, name) == getattr(message, name)
        assert type(getattr(crossed, name)) is type(getattr(message, name))


def test_error_of_an_event_is_pickled() -> None:
    crossed = pickle.loads(pickle.dumps(replace(EVENT, error=NonFiniteLogits("row 3"))))
    assert isinstance(crossed.error, NonFiniteLogits) and str(crossed.error) == "row 3"


def test_joined_delta_concatenates_data_and_takes_the_rest_from_the_later_one() -> None:
    whole = Delta(
        "r",
        1,
        (4,),
        "b",
        ({},),
        None,
        FinishReason.LENGTH,
        9,
        Usage(1, 2),
        NonFiniteLogits("x"),
        5,
        "t",
        2.5,
        3,
        (1.0,),
        (Part(PartKind.CONTENT, "b"),),
        4,
    )
    first = (Part(PartKind.CALL, "f"), Part(PartKind.CONTENT, "a"))
    earlier = Delta("r", 1, (2, 3), "a", ({}, {}), (None,), seed=5, trace_id="t", scheduled=1.5, parts=first)
    update: dict[str, Any] = {
        "token_ids": (2, 3, 4),
        "text": "ab",
        "logprobs": ({}, {}, {}),
        "prompt_logprobs": (None,),
    }
    update["parts"] = (Part(PartKind.CALL, "f"), Part(PartKind.CONTENT, "ab"))
    joined, wanted = join(earlier, whole), replace(whole, **update)  # type: ignore[arg-type]
    assert all(getattr(joined, field.name) == getattr(wanted, field.name) for field in fields(Delta))
    for field in fields(Delta):  # fails for a new field that `whole` does not set
        assert getattr(whole, field.name) != field.default or field.name == "prompt_logprobs"
