"""Under random schedules of all features, answers have the bits that they have alone.

The schedules cover prefixes (cold, warm, from disk), forks, truncation, both kinds of preemption, every drafter and
accuracy, priorities, steps of 1 to 512 tokens, one and two threads, every format and kernel set. A failing schedule is
reported by its number, which repeats it except for the arrival of pages from disk.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import count, product
from pathlib import Path

import pytest

from ferrum.scheduler.queues import POLICIES
from native_twin import TIERS
from schedule_player import play
from schedules import (
    DRAFTERS,
    EMULATED,
    Schedule,
    schedule_of,
    schedule_of_hybrid,
    schedule_on_ranks,
    schedule_with_adapters,
    schedule_with_states,
)

KERNELS = ("native", "native", "native", "reference") if TIERS else ("reference",)
SLICE, WITH_STATES, WITH_ADAPTERS, ON_RANKS, CUDA, ALL = 12, 4, 4, 3, 24, 1000
MANY_ON_RANKS = 60
HISTORIES, ALL_HISTORIES = 200, 50_000
"""Lives of sequences of hybrid models."""
needs_native = pytest.mark.skipif(not TIERS, reason="needs the native library")
WEIGHTS = ("float32", "bfloat16", "q8_0", "q4_k_m")
KV = ("float32", "bfloat16", "int8")
PLACES = ("pages", "pages and buffers", "files", "files and buffers")
"""The storages in which earlier results may be found."""

GUESSES = tuple(f"{how} by {who}" for how, who in product(("right", "wrong"), DRAFTERS) if who != "none")
PREEMPTIONS = tuple(f"preempted with {place}" for place in ("nothing", *PLACES))
EVENTS = (
    *("whole", "cut short", "found by another engine", "forks of forks", "cuts"),
    *(*GUESSES, "none right", "some right", "all right"),
    *(*PREEMPTIONS, *(f"hits in {place}" for place in PLACES), *(f"restored from {place}" for place in PLACES[1:])),
)
"""What happens in a thousand schedules."""


def played(
    numbers: Iterable[int],
    directory: Path,
    draw: Callable[[int, Sequence[str]], Schedule] = schedule_of,
    kernels: Sequence[str] = KERNELS,
) -> Counter[str]:
    """Return what happened in the schedules of these numbers."""
    seen: Counter[str] = Counter()
    for number in numbers:
        schedule = draw(number, kernels)
        try:
            seen += play(schedule, number, directory / str(number))
        except Exception as error:
            error.add_note(f"in schedule {number}: {schedule}")
            raise
    return seen


def most(seen: Counter[str], what: str) -> int:
    """Return the largest count of such an event in a step."""
    return max(int(name.partition(" ")[0]) for name in seen if name.endswith(what))


def test_a_thousand_schedules_cover_every_feature() -> None:
    """Every format on every kernel set, and every scheduling, caching and drafting option."""
    drawn = [schedule_of(number, KERNELS) for number in range(ALL)]
    arithmetics = {(each.arithmetic.kernels, each.arithmetic.weights, each.arithmetic.kv) for each in drawn}
    assert arithmetics == set(product(KERNELS, WEIGHTS, KV))
    assert {each.arithmetic.isa for each in drawn} == {*TIERS, "auto"}
    assert {(each.threads, each.arithmetic.model) for each in drawn} == set(product((1, 2), ("full", "windows")))
    assert {each.batch for each in drawn} >= {1, 32}
    assert {each.chunk for each in drawn} >= {1, 512}
    assert {(each.policy, each.memory) for each in drawn} == set(product(POLICIES, ("nothing", *PLACES)))
    assert {(each.drafter, each.right) for each in drawn} >= set(product(DRAFTERS, (0.0, 1.0)))


def test_some_schedules(tmp_path: Path) -> None:
    played(range(SLICE), tmp_path)


@pytest.mark.cuda
def test_schedules_on_the_emulated_cuda_device_have_the_bits_of_the_cpu(tmp_path: Path) -> None:
    seen = played(range(CUDA), tmp_path, kernels=EMULATED)
    preempted = any(seen[each] for each in PREEMPTIONS)
    assert preempted and seen["whole"] and seen["hits in pages"] and any(seen[each] for each in GUESSES), seen


def test_some_schedules_with_states_and_faults(tmp_path: Path) -> None:
    assert played(range(WITH_STATES), tmp_path, schedule_with_states)["faults"]


def test_some_schedules_with_adapters(tmp_path: Path) -> None:
    played(range(WITH_ADAPTERS), tmp_path, schedule_with_adapters)


@needs_native
def test_some_schedules_on_ranks(tmp_path: Path) -> None:
    """Experts with int8 keys, latent attention, convolutions with int8 keys."""
    assert played(range(ON_RANKS), tmp_path, schedule_on_ranks, ("native",))["whole"]


def histories_of_hybrids(wanted: int, directory: Path) -> Counter[str]:
    """Play schedules until as many sequences have ended, and return what happened."""
    seen: Counter[str] = Counter()
    for number in count():
        seen += played((number,), directory, schedule_of_hybrid, KERNELS)
        if seen["whole"] + seen["cut short"] >= wanted:
            return seen
    raise AssertionError


OF_HISTORIES = ("whole", "cut short", "hits in pages", "right by ngram", "wrong by ngram", "preempted with pages")
"""What happens in the histories of hybrid models."""


def test_histories_of_hybrid_models_have_the_bits_of_cold_runs(tmp_path: Path) -> None:
    """N-gram drafts, prefix hits, preemption and several choices, in any combination."""
    seen = histories_of_hybrids(HISTORIES, tmp_path)
    assert [each for each in OF_HISTORIES if not seen[each]] == []


@pytest.mark.soak
def test_many_histories_of_hybrid_models(tmp_path: Path) -> None:
    seen = histories_of_hybrids(ALL_HISTORIES, tmp_path)
    assert [each for each in (*OF_HISTORIES, "preempted with nothing") if not seen[each]] == []


@pytest.mark.soak
def test_a_thousand_schedules(tmp_path: Path) -> None:
    seen = played(range(ALL), tmp_path)
    assert [each for each in EVENTS if not seen[each]] == []
    assert most(seen, "at once") >= 32 and most(seen, "tokens") == 512


@pytest.mark.soak
def test_a_thousand_schedules_with_adapters(tmp_path: Path) -> None:
    seen = played(range(ALL), tmp_path, schedule_with_adapters)
    assert [each for each in EVENTS if not seen[each]] == []


@pytest.mark.soak
def test_a_thousand_schedules_with_states_and_faults(tmp_path: Path) -> None:
    seen = played(range(ALL), tmp_path, schedule_with_states)
    preemptions = tuple(f"preempted with {place}" for place in ("nothing", "pages"))
    wanted = ("whole", "cut short", "faults", "forks of forks", "cuts", "hits in pages", *preemptions, *GUESSES)
    assert [each for each in wanted if not seen[each]] == []


@pytest.mark.soak
@needs_native
def test_many_schedules_on_ranks(tmp_path: Path) -> None:
    played(range(MANY_ON_RANKS), tmp_path, schedule_on_ranks, ("native",))
