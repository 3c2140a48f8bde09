"""What a sequence stores once, whatever its length: any steps, faults, drafts and forks leave the bits of one pass."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from contract_kit import same
from ferrum.client.client_base import engine_config
from ferrum.core.errors import ConfigError, KvExhausted, StepError, Unsupported
from ferrum.core.params import SamplingParams
from ferrum.core.step import Rows, Sampling, Span, SpanExtras, SpanResult, StepBatch, Want
from ferrum.core.types import Request
from ferrum.engine.recipe import with_scheduler
from ferrum.kernels.interface import StepTables
from ferrum.scheduler.drafts import DraftRequest
from ferrum.scheduler.sequence import begin as choices_of
from ferrum.speculative.draft_model import DraftModel
from ferrum.verbs.load_executor import LocalExecutor
from fixed_costs import SetCosts
from held_arrays import owned_arrays
from native_twin import TIERS, require_native
from recurrent_model import KINDS, VOCABULARY, load

LENGTH = 60
TEXTS = 3
STATEFUL = [kind for kind in KINDS if "recurrent" in kind]
OPERATIONS = [kind for kind in STATEFUL if "operations" in kind]
"""The library computes these, so every tier does."""
BACKENDS = [*product(STATEFUL, ("reference", "native", "toy")), *product(OPERATIONS, TIERS)]


def text_of(seed: int) -> tuple[int, ...]:
    return tuple(np.random.default_rng(seed).integers(0, VOCABULARY, LENGTH).tolist())


@cache
def rows_of(kind: str, seed: int) -> np.ndarray:
    """Return the logits [LENGTH, V] of a text in one pass."""
    with load(kind, "reference") as executor:
        rows: np.ndarray = executor.forward([text_of(seed)])[0]
        return rows


@pytest.fixture(params=BACKENDS, ids=lambda pair: f"{pair[0]} on {pair[1]}")
def case(request: pytest.FixtureRequest) -> Iterator[tuple[str, LocalExecutor]]:
    """Give a kind of model and its executor, with passes of 16 tokens."""
    kind, name = request.param
    if name == "native":
        require_native()
    kernels, isa = ("native", name) if name in TIERS else (name, "auto")
    with load(kind, kernels, isa=isa, page_size=4, max_rows=16, max_batch_size=4, kv_capacity=800) as executor:
        yield kind, executor
        for cache_id in executor.pages.ids():
            executor.release_cache(cache_id)
        executor.pages.check()
        assert executor.pages.free_slots == executor.memory_plan.states.num_slots, "slots of states leak"


def run(executor: LocalExecutor, *spans: Span) -> list[Any]:
    return list(executor.submit(StepBatch(spans)).result().results)


def part_of(seed: int, cache_id: str, start: int, end: int) -> Span:
    return Span(cache_id, start, text_of(seed)[start:end], Want.LOGITS, Rows.ALL)


def test_any_spans_in_any_company_have_the_bits_of_one_pass(case: tuple[str, LocalExecutor]) -> None:
    kind, executor = case
    pick, lengths = Random(kind), dict.fromkeys(range(TEXTS), 0)
    while min(lengths.values()) < LENGTH:
        spans = []
        for seed, length in lengths.items():
            if length < LENGTH and pick.random() < 0.7:
                spans.append(part_of(seed, f"s{seed}", length, min(LENGTH, length + pick.choice((1, 1, 2, 7, 40)))))
        for span, result in zip(spans, run(executor, *spans) if spans else (), strict=True):
            seed = int(span.cache_id[1:])
            same(result.logits, rows_of(kind, seed)[span.start : span.end])
            lengths[seed] = span.end


def greedy(executor: LocalExecutor, prompt: tuple[int, ...], count: int) -> list[int]:
    """Return a prompt and its greedy continuation, token by token."""
    history, stored = list(prompt), 0
    sampling = Sampling(SamplingParams(temperature=0), 0, len(prompt), list(prompt))
    while len(history) < count:
        (result,) = run(executor, Span("greedy", stored, tuple(history[stored:]), sampling=sampling))
        stored = len(history)
        history += result.tokens
    executor.release_cache("greedy")
    return history


def test_drafts_count_if_they_are_accepted(case: tuple[str, LocalExecutor]) -> None:
    """Each step verifies drafts of which only the first few are what the model would say."""
    kind, executor = case
    prompt, pick = text_of(0)[:9], Random(kind)
    expected = greedy(executor, prompt, LENGTH + 2 * 16)
    sampling = Sampling(SamplingParams(temperature=0), 0, len(prompt), list(prompt))
    history, stored = list(prompt), 0
    while len(history) < LENGTH:
        drafts = pick.choice((1, 5, 16))
        right, next_tokens = pick.randrange(drafts + 1), expected[len(history) :]
        guess = [*next_tokens[:right], *[(next_tokens[right] + 1) % VOCABULARY] * (drafts - right)]
        tokens, extras = (*history[stored:], *guess), SpanExtras(drafts)
        (result,) = run(executor, Span("drafted", stored, tokens, rows=Rows.ALL, sampling=sampling, extras=extras))
        assert result.accepted == right
        stored, history = result.length, [*history, *result.tokens]
        assert history == expected[: len(history)] and stored == len(history) - 1


def test_a_draft_round_copies_no_state(case: tuple[str, LocalExecutor], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every slot written is of a state that has advanced, and a sequence holds one slot after each round."""
    _, executor = case
    kernels, steps, copies = executor.lm.kernels, list[StepTables](), list[int]()
    begin = kernels.begin
    monkeypatch.setattr(kernels, "begin", lambda tables: (steps.append(tables), begin(tables)))
    monkeypatch.setattr(kernels, "copy_slot", lambda *slots: copies.append(1), raising=False)
    prompt, free = text_of(0)[:9], executor.pages.free_slots
    expected = greedy(executor, prompt, 30)
    sampling = Sampling(SamplingParams(temperature=0), 0, len(prompt), list(prompt))
    history, stored = list(prompt), 0
    for right in (0, 2, 4, 1):
        guess = [*expected[len(history) :][:right], *[VOCABULARY - 1] * (4 - right)]
        span = Span("a", stored, (*history[stored:], *guess), rows=Rows.ALL, sampling=sampling, extras=SpanExtras(4))
        (result,) = run(executor, span)
        stored, history = result.length, [*history, *result.tokens]
        assert executor.pages.free_slots == free - 1
    assert not copies and len(steps) > 4
    for tables in steps:
        assert tables.states is not None
        applied = tables.states.waiting + np.diff(tables.span_rows) - tables.states.kept
        assert (applied > 0).all()


def test_a_draft_model_goes_back_to_the_state_before_its_draft(case: tuple[str, LocalExecutor]) -> None:
    """Accepted draft tokens are computed again, rejected ones leave no trace."""
    _, executor = case
    model = DraftModel(executor, SetCosts(0.01), SetCosts(0.01))
    request = Request("r", text_of(0)[:20], SamplingParams(temperature=0, max_tokens=60), seed=0)
    (sequence,), pick = choices_of(request), Random(1)
    for _ in range(8):
        expected = greedy(executor, tuple(sequence.tokens), len(sequence.tokens) + 4)[len(sequence.tokens) :]
        assert model.draft([DraftRequest(sequence, 4)]) == [tuple(expected)]
        right = pick.randrange(5)
        sequence.extend((*expected[:right], (expected[right] + 1) % VOCABULARY if right < 4 else 5))
    model.forget(sequence)


class LayerFault:
    """A fault in one layer of every pass that holds a token."""

    def __init__(self, layer: int, token: int) -> None:
        self.layer, self.token = layer, token

    def __call__(self, layer: int, tables: StepTables) -> None:
        if layer == self.layer and self.token in tables.token_ids:
            raise ZeroDivisionError("injected")


def recurrent_layers(executor: LocalExecutor) -> int:
    """Return the most layers with one shape of state."""
    return max(shape.num_layers for shape in executor.info.state_layers)


def with_fault(executor: LocalExecutor, fault: Any) -> None:
    kernels = executor.lm.kernels
    getattr(kernels, "_inner", kernels).fault = fault


def test_a_fault_in_a_layer_fails_one_sequence_which_then_goes_on(case: tuple[str, LocalExecutor]) -> None:
    """Layers before the faulty one have run: a state changed in place would then see a row twice."""
    kind, executor = case
    for layer in range(recurrent_layers(executor)):
        lengths = {"a": 20, "b": 33}
        for seed, (cache_id, length) in enumerate(lengths.items()):
            run(executor, part_of(seed, cache_id, 0, length))
        with_fault(executor, LayerFault(layer, text_of(0)[21]))
        for _ in range(2):
            spans = part_of(0, "a", 20, 40), part_of(1, "b", lengths["b"], lengths["b"] + 2)
            failed, served = run(executor, *spans)
            assert isinstance(failed, StepError) and executor.pages.length("a") == 20
            same(served.logits, rows_of(kind, 1)[lengths["b"] : lengths["b"] + 2])
            lengths["b"] += 2
        with_fault(executor, None)
        (result,) = run(executor, part_of(0, "a", 20, 40))
        same(result.logits, rows_of(kind, 0)[20:40])
        new = part_of(2, "new", 0, 5)
        with_fault(executor, LayerFault(layer, text_of(2)[0]))
        assert isinstance(run(executor, new)[0], StepError) and "new" not in executor.pages
        with_fault(executor, None)
        for cache_id in lengths:
            executor.release_cache(cache_id)


def test_forks_share_a_state_until_either_goes_on(case: tuple[str, LocalExecutor]) -> None:
    kind, executor = case
    run(executor, part_of(0, "a", 0, 30))
    free = executor.pages.free_slots
    executor.pages.fork("a", "b")
    executor.pages.fork("b", "c")
    assert executor.pages.free_slots == free
    for cache_id in ("a", "b"):
        (result,) = run(executor, part_of(0, cache_id, 30, 40))
        same(result.logits, rows_of(kind, 0)[30:40])
    executor.release_cache("a")
    for cache_id, begin in (("b", 40), ("c", 30)):
        (result,) = run(executor, part_of(0, cache_id, begin, 50))
        same(result.logits, rows_of(kind, 0)[begin:50])


def test_a_state_goes_back_over_drafts_and_to_the_beginning_only(case: tuple[str, LocalExecutor]) -> None:
    kind, executor = case
    tokens = text_of(0)
    run(executor, part_of(0, "a", 0, 10))
    run(executor, Span("a", 10, tokens[10:16], Want.LOGITS, Rows.ALL, extras=SpanExtras(5)))
    pages = executor.pages
    assert [length for length in range(17) if pages.can_truncate("a", length)] == [0, 10, 11, 12, 13, 14, 15, 16]
    with pytest.raises(Unsupported, match="position 9: the state of its recurrent layers has seen later tokens"):
        pages.truncate("a", 9)
    pages.truncate("a", 13)
    (result,) = run(executor, part_of(0, "a", 13, 20))
    same(result.logits, rows_of(kind, 0)[13:20])
    pages.truncate("a", 0)
    (result,) = run(executor, part_of(1, "a", 0, 20))
    same(result.logits, rows_of(kind, 1)[:20])


def test_a_held_state_comes_back(case: tuple[str, LocalExecutor]) -> None:
    """Verbs that undo a whole batch hold the states of its sequences."""
    kind, executor = case
    run(executor, part_of(0, "a", 0, 10))
    with executor.pages.holding(["a"]):
        run(executor, part_of(0, "a", 10, 30))
        run(executor, part_of(0, "a", 30, 31))
        executor.pages.truncate("a", 10)
    (result,) = run(executor, part_of(0, "a", 10, 25))
    same(result.logits, rows_of(kind, 0)[10:25])


def test_sequences_beyond_the_slots_are_refused_alone() -> None:
    with load("recurrent", "reference", max_batch_size=2, max_rows=16) as executor:
        slots, states = executor.pages.free_slots, executor.memory_plan.states
        assert (
            slots == 4 + states.snapshots
            and states.sequences == 2
            and executor.supports_batch_size(2)
            and not executor.supports_batch_size(3)
        )
        for number in range(slots):
            (result,) = run(executor, part_of(0, f"s{number}", 0, 3))
            assert isinstance(result, SpanResult)
        (refused,) = run(executor, part_of(0, "one more", 0, 3))
        assert isinstance(refused, KvExhausted) and "one more" not in executor.pages
        with pytest.raises(ConfigError, match="load the model with run_ahead=1"):
            executor.run_ahead(1)


def test_more_drafts_than_rows_are_kept_of_are_refused() -> None:
    with load("recurrent", "reference", max_rows=64) as executor:
        span = Span("a", 0, text_of(0)[:18], Want.LOGITS, Rows.ALL, extras=SpanExtras(17))
        (refused,) = run(executor, span)
        assert isinstance(refused, Unsupported) and "17 in one span" in refused.reason


@pytest.mark.parametrize("kind", KINDS)
def test_the_memory_plan_counts_pages_and_slots(kind: str) -> None:
    with load(kind, "reference", max_batch_size=3) as executor:
        plan, info = executor.memory_plan, executor.info
        assert plan.total - plan.libraries == sum(array.nbytes for array in owned_arrays(executor))
        assert (plan.states is None) == (kind not in STATEFUL) == (not info.state_layers)
        assert type(info).from_json(info.to_json()) == info and type(plan).from_json(plan.to_json()) == plan
        needs = executor.memory_requirements
        assert plan.total <= needs.calculate_total_memory(3, info.max_sequence_length, info.num_layers)


def test_a_model_that_stores_nothing_runs() -> None:
    with load("feed-forward only", "native", max_batch_size=3, max_sequence_length=100) as executor:
        assert (executor.kv_capacity(), executor.pages.groups, executor.info.num_heads) == (300, (), 0)
        (whole,) = run(executor, part_of(0, "whole", 0, 20))
        for begin, end in ((0, 7), (7, 20)):
            (result,) = run(executor, part_of(0, "cut", begin, end))
            same(result.logits, whole.logits[begin:end])
        assert executor.supports_batch_size(3) and executor.handle("cut").block_table == ()


@pytest.mark.parametrize("option", ["prefix_cache_dir", "swap_gib"])
def test_an_engine_shares_prefixes_of_states_in_memory_and_refuses_other_tiers(option: str, tmp_path: Path) -> None:
    with load("recurrent with attention", "reference") as executor:
        config = engine_config("m", {})
        built = with_scheduler(executor, config, "m")
        assert config.prefix_cache and built.info.prefix_cache
        value = {"prefix_cache_dir": str(tmp_path), "swap_gib": 1}[option]
        with pytest.raises(ConfigError, match="which stay in memory") as caught:
            with_scheduler(executor, engine_config("m", {option: value}), "m")
        assert caught.value.param == option
