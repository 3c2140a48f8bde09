"""Extras and the fast path: adapters that have begun and images that have ended may take it, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ferrum.core.params import SamplingParams
from ferrum.core.step import AdapterUse, Grid, Hidden, Sampling, Span, SpanExtras, Want, is_plain
from ferrum.scheduler import planner, step_plan
from ferrum.scheduler.sequence import make_span
from scheduler_bench import Bench
from span_kit import EXTRAS, special

SPECIAL = tuple(field for field in EXTRAS if field not in ("adapters", "grids"))
SLOW = (
    *(pytest.param(special(field), id=field) for field in SPECIAL),
    pytest.param(SpanExtras(adapters=(AdapterUse("it", start=1000),)), id="adapters"),
    pytest.param(SpanExtras(grids=(Grid(1, 2, 1), Grid(3, 500, 2))), id="grids"),
)
"""Extras that spans of the fast path do not have; this adapter has not begun, and this image has not ended."""

PLAIN = Span("a", 5, (1,), sampling=Sampling(SamplingParams(), 0, 1, [1]))


def test_one_token_after_one_is_plain() -> None:
    assert is_plain([PLAIN, replace(PLAIN, cache_id="b")])


@pytest.mark.parametrize("changes", [{"want": Want.NONE}, {"hidden": Hidden.LAST}, {"tokens": (1, 2)}, {"tokens": ()}])
def test_other_tokens_or_results_are_not_plain(changes: dict[str, Any]) -> None:
    assert not is_plain([PLAIN, replace(PLAIN, **changes)])


@pytest.mark.parametrize("field", SPECIAL)
def test_no_other_extra_is_plain(field: str) -> None:
    uses = (AdapterUse("it"),)
    for extras in (special(field), replace(special(field), adapters=uses)):
        assert not is_plain([PLAIN, replace(PLAIN, extras=extras)])


@pytest.mark.parametrize("start", [0, 5, 6])
def test_an_adapter_is_plain_once_it_has_begun(start: int) -> None:
    extras = SpanExtras(adapters=(AdapterUse("before"), AdapterUse("it", 0.5, start)))
    assert is_plain([PLAIN, replace(PLAIN, extras=extras)]) == (start <= PLAIN.start)


@pytest.mark.parametrize("columns", [1, 2, 3])
def test_an_image_is_plain_once_it_has_ended(columns: int) -> None:
    extras = SpanExtras(grids=(Grid(0, 1, 1), Grid(1, 2, columns)))
    assert is_plain([PLAIN, replace(PLAIN, extras=extras)]) == (1 + 2 * columns <= PLAIN.start)


def test_a_record_without_extras_is_none() -> None:
    assert SpanExtras().or_none() is None
    assert SpanExtras(drafts=1).or_none() == SpanExtras(drafts=1)


def decoding() -> Bench:
    """Return a scheduler that has begun to decode one sequence by the fast path."""
    bench = Bench()
    bench.add("a", 5, max_tokens=20)
    for _ in range(3):
        bench.step()
    assert bench.scheduler.live.decodes.sequences
    return bench


def makes(extras: SpanExtras) -> Callable[..., Span]:
    """Return a `make_span` whose spans have these extras."""
    return lambda *given, **more: replace(make_span(*given, **more), extras=extras)


@pytest.mark.parametrize("extras", SLOW)
def test_the_fast_path_ends_where_a_span_gets_an_extra(extras: SpanExtras, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = decoding()
    monkeypatch.setattr(step_plan, "make_span", makes(extras))
    assert bench.scheduler.live.decodes.plan() is None


@pytest.mark.parametrize("extras", SLOW)
def test_the_fast_path_does_not_begin_from_a_span_with_an_extra(
    extras: SpanExtras, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = decoding()
    bench.scheduler.live.decodes.end()
    monkeypatch.setattr(planner, "make_span", makes(extras))
    plan = bench.scheduler.plan()
    assert plan is not None and plan.batch.spans[0].extras == extras
    assert not bench.scheduler.live.decodes.sequences


@pytest.mark.parametrize("extras", [SpanExtras(adapters=(AdapterUse("it"),)), SpanExtras(grids=(Grid(1, 1, 2),))])
def test_the_fast_path_goes_on_with_what_has_begun_or_ended(
    extras: SpanExtras, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = decoding()
    monkeypatch.setattr(step_plan, "make_span", makes(extras))
    plan = bench.scheduler.live.decodes.plan()
    assert plan is not None and plan.batch.spans[0].extras == extras


def test_the_fast_path_plans_what_the_planner_does() -> None:
    fast, slow = decoding().scheduler, decoding().scheduler
    slow.live.decodes.end()
    first, second = fast.plan(), slow.plan()
    assert first is not None and second is not None
    assert first.tenant is not None and second.tenant is None, "only the first took the fast path"
    pairs = zip(first.batch.spans, second.batch.spans, strict=True)
    assert all(replace(one, sampling=None) == replace(other, sampling=None) for one, other in pairs)
