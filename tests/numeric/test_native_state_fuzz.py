"""Random histories of states on native kernels and the reference: results and slots are equal to the byte."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrum.cache.state_slots import StateSlots, StateStep
from ferrum.core.state_shape import StateShape
from ferrum.kernels.interface import StatePool, StateTables
from ferrum.kernels.op_attributes import SIGMOID, SILU, Activation, DeltaShape
from hypothesis_settings import examples, seeds
from native_twin import TIERS, Twin, normal, same_bits, tables_of

SEQUENCES, SLOTS, KEPT = 4, 9, 5
widths = st.one_of(st.integers(1, 40), st.sampled_from([16, 32, 48, 64, 128]))


class Histories:
    """Sequences whose spans are cut, drafted and accepted at random."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng, self.slots = rng, StateSlots(SLOTS)
        self.lengths = dict.fromkeys(map(str, range(SEQUENCES)), 0)

    def step(self) -> list[tuple[str, StateStep, int, int]]:
        """Return some sequences with what a step does to their states, its end, and how many rows a pass has."""
        taken = []
        for cache_id, start in self.lengths.items():
            count = int(self.rng.choice([0, 1, 1, 2, 6, 17, 40]))
            drafts = min(int(self.rng.integers(0, KEPT + 1)), count) if self.rng.random() < 0.5 else 0
            step = self.slots.begin(cache_id, start, start + count - drafts) if count else None
            if step is not None:
                taken.append((cache_id, step, start + count, int(self.rng.integers(1, 2 * count + 1))))
        return taken

    def commit(self, steps: list[tuple[str, StateStep, int, int]]) -> None:
        """Accept some drafts of each sequence; then sometimes drop one, or let another one fork from it."""
        for cache_id, step, end, _ in steps:
            self.slots.commit(cache_id)
            self.lengths[cache_id] = int(self.rng.integers(step.until, end + 1))
        source, target = map(str, self.rng.permutation(SEQUENCES)[:2])
        if self.rng.random() < 0.5:
            self.slots.release(target)
            self.slots.fork(source, target)
            self.lengths[target] = self.lengths[source] if self.rng.random() < 0.5 else 0
            self.slots.truncate(target, self.lengths[target])


def passes(taken: list[tuple[str, StateStep, int, int]]) -> list[list[tuple[StateStep, int, int]]]:
    """Cut a step into passes of spans (step, begin, end), each of the sequences that have rows left."""
    cuts = [[(step, at, min(at + size, end)) for at in range(step.start, end, size)] for _, step, end, size in taken]
    return [[cut[index] for cut in cuts if index < len(cut)] for index in range(max(map(len, cuts), default=0))]


@pytest.mark.parametrize("tier", TIERS)
@examples(4)
@given(
    seed=seeds,
    threads=st.integers(1, 4),
    taps=st.integers(1, 6),
    channels=st.one_of(st.integers(1, 70), st.integers(500, 1100)),
    activation=st.sampled_from([None, SILU, SIGMOID, Activation("gelu")]),
    key_heads=st.integers(1, 3),
    repeats=st.integers(1, 3),
    key_dim=widths,
    value_dim=widths,
)
def test_states(tier, threads, seed, taps, channels, activation, key_heads, repeats, key_dim, value_dim):
    """Two layers of convolutions and one of the delta rule run each pass."""
    rng, heads = np.random.default_rng(seed), key_heads * repeats
    shape = DeltaShape(1, 0, heads, key_heads, key_dim, value_dim)
    shapes = (
        StateShape((taps - 1) * channels, channels, 2),
        StateShape(shape.state_numbers, shape.input_columns + 2 * heads),
    )
    twin = Twin(tier, threads, states=StatePool(SLOTS, shapes, KEPT))
    taken, bias = normal(rng, taps * channels), normal(rng, channels)
    convolutions = [("short_conv", (channels,), (taken, (0, layer), bias, activation)) for layer in range(2)]
    vectors = -np.exp(normal(rng, heads)), normal(rng, heads)
    delta = "delta_rule", (shape.input_columns, heads, heads), (*vectors, shape)
    histories = Histories(rng)
    for _ in range(5):
        steps = histories.step()
        for spans in passes(steps):
            tables = tables_of(rng, [(begin, end - begin) for _, begin, end in spans], ())
            parts = zip(*(step.part(begin, end) for step, begin, end in spans), strict=True)
            twin.begin(tables._replace(states=StateTables(*(np.array(part, np.int32) for part in parts))))
            for name, columns, rest in (*convolutions, delta):
                inputs = [normal(rng, len(tables.token_ids), each) for each in columns]
                same_bits(*twin.both(name, *inputs, *rest))
        histories.commit(steps)
        for slot in range(SLOTS):
            np.testing.assert_array_equal(twin.native.read_slot(slot), twin.reference.read_slot(slot))


@pytest.mark.parametrize("tier", TIERS)
@examples(4)
@given(
    seed=seeds,
    threads=st.integers(1, 3),
    rows=st.integers(0, 40),
    heads=st.integers(1, 9),
    dim=st.integers(1, 200),
    activation=st.sampled_from([SILU, SIGMOID, Activation("silu", 1.7, 0.5)]),
)
def test_gated_norms(tier, threads, seed, rows, heads, dim, activation):
    rng, twin = np.random.default_rng(seed), Twin(tier, threads)
    x, gate = (normal(rng, rows, heads * dim) for _ in range(2))
    same_bits(*twin.both("gated_norm", x, gate, normal(rng, dim), 1e-6, heads, activation))
