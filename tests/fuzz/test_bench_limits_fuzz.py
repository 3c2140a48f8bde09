"""The arithmetic behind every ratio, on random spans."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from bench_kit import costs_of
from ferrum.bench.workloads import Kind, SpanShape, Workload


@given(st.integers(1, 300), st.integers(1, 64))
def test_attention_work_does_not_depend_on_how_a_prompt_is_cut(length, piece):
    costs = costs_of("tiny", "bfloat16")
    op = next(op for op in costs.program.ops if op.name == "attention")

    def operations(spans):
        return sum(part.operations for span in spans for part in costs.of(op, (span,)))

    cut = [SpanShape(start, min(piece, length - start), 0) for start in range(0, length, piece)]
    assert operations(cut) == operations([SpanShape(0, length, 0)])


@given(st.integers(0, 200), st.integers(1, 50), st.none() | st.integers(1, 80), st.none() | st.integers(1, 80))
def test_windows_and_chunks_read_and_multiply_what_their_queries_can_see(start, count, window, chunk):
    costs = costs_of("tiny", "bfloat16")
    found = next(op for op in costs.program.ops if op.name == "attention")
    q, shape, sinks = found.arguments
    op = replace(found, arguments=(q, replace(shape, window=window, chunk=chunk), sinks))
    (part,) = costs.of(op, (SpanShape(start, count, 0),))

    def sees(query: int, key: int) -> bool:
        in_chunk = chunk is None or key // chunk == query // chunk
        return in_chunk and (window is None or key > query - window)

    seen = [{key for key in range(q + 1) if sees(q, key)} for q in range(start, start + count)]
    assert part.nbytes == len(set().union(*seen)) * costs.kv_bytes[0]
    assert part.operations == 4 * 4 * 16 * sum(map(len, seen))


@given(st.integers(1, 20), st.integers(1, 300), st.integers(1, 40), st.integers(20, 100))
def test_passes_bring_every_token_in_once_in_order_and_are_never_too_large(sequences, context, tokens, max_rows):
    served = Workload("x", Kind.SERVE, sequences, context, tokens)
    passes = list(served.passes(max_rows))
    assert all(sum(span.count for span in spans) <= max_rows for spans in passes)
    prompts = [span for spans in passes[: len(passes) - tokens + 1] for span in spans]
    assert sum(span.logits for span in prompts) == sequences
    stored = 0
    for span in prompts:
        assert span.start == stored
        stored = 0 if span.logits else stored + span.count
        assert not span.logits or span.start + span.count == context
    for step, spans in enumerate(passes[len(passes) - tokens + 1 :]):
        assert spans == (SpanShape(context + step, 1, 1),) * sequences
