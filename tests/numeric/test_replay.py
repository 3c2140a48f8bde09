"""A replayed program equals the eager network bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from ferrum.core.step import Hidden, Rows, Span, StepBatch, Want
from ferrum.kernels.op_spec import Extent, Value
from ferrum.kernels.recorded_program import Recorder, record
from ferrum.verbs.load_executor import load_executor
from tiny import CASES, directory_of, find, tokens_of


def executors(name: str):
    directory = directory_of(find(name))
    return [load_executor(directory, replay=replay, kernels="reference") for replay in (True, False)]


@pytest.mark.contract("4.recorded step")
@pytest.mark.parametrize("name", ["qwen3-windows", "qwen2"])
def test_replay_equals_eager_at_every_row_count(name):
    replayed, eager = executors(name)
    for count in range(1, 41):
        tokens = tuple(tokens_of(find(name), count, seed=count))
        span = Span(f"s{count}", 0, tokens, Want.LOGITS, Rows.ALL, Hidden.ALL)
        ours, theirs = (each.submit(StepBatch((span,))).result().results[0] for each in (replayed, eager))
        np.testing.assert_array_equal(ours.logits, theirs.logits)
        np.testing.assert_array_equal(ours.hidden, theirs.hidden)
        for each in (replayed, eager):
            each.release_cache(span.cache_id)


@pytest.mark.contract("4.recorded step")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_live_values_never_share_a_buffer(case):
    decoder = load_executor(directory_of(case), kernels="reference").lm.network
    program = record(decoder)
    output = program.output
    last = {value: len(program.ops) for value in output}
    for index, op in reversed(list(enumerate(program.ops))):
        for value in (*op.results, *op.operands()):
            last.setdefault(value, index)
    living: dict[int, Value] = {}
    for index, op in enumerate(program.ops):
        for value in op.results:
            buffer = program.placement[value]
            holder = living.get(buffer)
            assert holder is None or last[holder] < index, f"{op.name} overwrites a value that is still read"
            assert program.buffers[buffer][0] is value.extent
            assert program.buffers[buffer][1] >= value.row_bytes
            living[buffer] = value
    assert len(program.buffers) < 14, "memory is reused from layer to layer"


def test_recording_has_no_row_count():
    decoder = load_executor(directory_of(find("llama2")), kernels="reference").lm.network
    recorder = Recorder()
    decoder(recorder)
    extents = {value.extent for op in recorder.ops for value in op.results}
    assert extents == set(Extent)
