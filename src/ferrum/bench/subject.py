"""The model under measurement: bare replayed steps, whole steps with their tokens, and requests through the engine."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Protocol, Self

from ferrum.bench.limits import Costs, label, layer_kv_bytes
from ferrum.bench.loop import time_engine_steps
from ferrum.bench.workloads import Kind, Pass, Room, SpanShape, Workload
from ferrum.cache.page_table import PageCopy
from ferrum.core.config import MAX_DRAFT, EngineConfig
from ferrum.core.errors import FerrumError, KvExhausted
from ferrum.core.params import SamplingParams
from ferrum.core.step import Sampling, Span, StepBatch
from ferrum.engine.build import with_scheduler
from ferrum.engine.hosts.host import ThreadHost
from ferrum.engine.llm import LLM
from ferrum.engine.model_client import Parts
from ferrum.kernels.cpu.native_kernels import NativeKernels
from ferrum.kernels.interface import StepTables
from ferrum.kernels.program_recorder import record
from ferrum.runtime.local_executor import LocalExecutor
from ferrum.runtime.step_tables import Piece, stage
from ferrum.text.generation_config import GenerationConfig

_GREEDY: Final = SamplingParams(temperature=0.0)
_MODEL_PAGE: Final = "bench-page"


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of one sample.

    Attributes:
        bare: the forward passes alone, as one native call each; with SERVE the same as `whole`.
        whole: the same work up to its sampled tokens: through the language model, with ENGINE turns of the engine's
            loop, with SERVE from the requests to their last token.
    """

    bare: float
    whole: float


class Subject(Protocol):
    """What can be measured."""

    def run(self, workload: Workload) -> Times:
        """Take one sample."""
        ...


class ExecutorSubject:
    """An executor on which nobody else works. A context manager: its end shuts the executor down.

    Args:
        executor: loaded, with a replayed program.
        config: what it was loaded by.
        name: of the model.
    """

    def __init__(self, executor: LocalExecutor, config: EngineConfig, name: str) -> None:
        self.executor = executor
        self._lm = executor.lm
        self._pages = self._lm.pages
        # A workload is run again and again: each run is to compute all of it.
        self._config = replace(config, prefix_cache=False)
        self._name = name
        self._tokens = random.Random(0)
        self._llm: LLM | None = None
        self._fill_model_page()

    @cached_property
    def costs(self) -> Costs:
        """What the limit of its steps is made of."""
        replay = self._lm.replay
        program = record(self._lm.network) if replay is None else replay.program
        group_bytes = [part.page_bytes / part.page_size for part in self.executor.memory_plan.pool]
        return Costs(program, self.executor.traits.kv_dtype.value, layer_kv_bytes(program, group_bytes))

    @property
    def room(self) -> Room:
        """What workloads have to fit in."""
        groups = self._pages.groups
        windows = [group.window for group in groups if group.window is not None]
        # What is kept to be taken back, a pass, and the page where that begins.
        beside = MAX_DRAFT + self.max_rows + groups[0].page_size
        return Room(
            context=self.executor.traits.max_sequence_length,
            sequences=self._config.model.max_batch_size,
            pool=self.executor.kv_capacity(),
            page_size=groups[0].page_size,
            resident=max(windows) + beside if len(windows) == len(groups) else None,
        )

    @property
    def max_rows(self) -> int:
        """Most tokens of one forward pass."""
        return self._lm.max_rows

    @property
    def threads(self) -> int:
        """Threads of the kernels; the reference has one."""
        kernels = self._lm.kernels
        return kernels.threads if isinstance(kernels, NativeKernels) else 1

    def run(self, workload: Workload) -> Times:
        """Take one sample.

        Raises:
            KvExhausted: the pool is too small for the workload.
        """
        if workload.kind is Kind.SERVE:
            seconds = self._serve(workload)
            return Times(seconds, seconds)
        if workload.kind is Kind.ENGINE:
            # Prompts are not what is measured, and in small pieces the first sequence would end before the last begins.
            unpaced = replace(self._config, decode_seconds=0.0)
            built = with_scheduler(self.executor, unpaced, self._name)
            prompts = [self._random(workload.context) for _ in range(workload.sequences)]
            return Times(*time_engine_steps(built, self._lm, prompts, workload.tokens))
        with self._sequences(workload) as ids:
            whole = self._whole(workload, ids)
        with self._sequences(workload) as ids:
            bare = self._bare(self._staged(workload, ids))
        return Times(bare, whole)

    def receipt(self, workload: Workload) -> list[tuple[str, float]]:
        """Label and seconds of every operation of a sample's passes, in their order.

        Raises:
            KvExhausted: as `run`.
        """
        replay = self._lm.replay
        if replay is None or workload.kind in (Kind.ENGINE, Kind.SERVE):
            return []
        labels = [label(op) for op in replay.program.ops]
        with self._sequences(workload) as ids:
            passes = self._staged(workload, ids)
            self._forward(passes[0])  # as in the samples that it explains
            return [
                timed for tables in passes for timed in zip(labels, replay.timed(self._lm.kernels, tables), strict=True)
            ]

    def close(self) -> None:
        """Shut the executor down."""
        if self._llm is not None:
            self._llm.close()
        else:
            self.executor.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Sequences

    def _fill_model_page(self) -> None:
        """Compute a page, within the context, of which contexts are copies: time is the same whatever it holds."""
        context = self.executor.traits.max_sequence_length
        size = min(context, *(group.page_size for group in self._pages.groups))
        self._run_whole([Span(_MODEL_PAGE, 0, self._random(size), sampling=self._sampling(()))])

    @contextmanager
    def _sequences(self, workload: Workload) -> Iterator[list[str]]:
        """Sequences with the workload's context stored, on pages of their own, and room for its tokens."""
        ids = [f"bench-{index}" for index in range(workload.sequences)]
        try:
            for cache_id in ids:
                self._store(cache_id, workload.context)
            yield ids
        finally:
            for cache_id in ids:
                self._pages.release(cache_id)

    def _store(self, cache_id: str, length: int) -> None:
        """Begin a sequence of so many stored tokens, as a prompt would in passes: window groups let pages go."""
        self._reserve(cache_id, 0)
        while (done := self._pages.length(cache_id)) < length:
            following = min(length, done + self._lm.max_rows)
            self._reserve(cache_id, following)
            self._pages.commit(cache_id, following)
        copies = [
            PageCopy(group.name, self._pages.row(_MODEL_PAGE, group.name)[0], page)
            for group in self._pages.groups
            for page in self._pages.row(cache_id, group.name)
            if page >= 0
        ]
        self._lm.kernels.copy_pages(copies)

    def _reserve(self, cache_id: str, length: int) -> None:
        if not self._pages.reserve(cache_id, length):
            raise KvExhausted(f"{length} tokens beside the others do not fit: give --kv-capacity")

    def _staged(self, workload: Workload, ids: Sequence[str]) -> list[StepTables]:
        """The tables of a sample's passes; the decoded token stays the same one, beyond the stored length."""
        if workload.kind is Kind.DECODE:
            return [self._pass(ids, passed) for passed in workload.passes(self._lm.max_rows)]
        tables = []
        for passed in workload.passes(self._lm.max_rows):
            tables.append(self._pass(ids, passed))
            for cache_id, span in zip(ids, passed, strict=True):
                self._pages.commit(cache_id, span.start + span.count)
        return tables

    def _pass(self, ids: Sequence[str], spans: Pass) -> StepTables:
        return stage([self._piece(cache_id, span) for cache_id, span in zip(ids, spans, strict=True)], self._pages)

    def _piece(self, cache_id: str, span: SpanShape) -> Piece:
        self._reserve(cache_id, span.start + span.count)
        rows = range(span.count - span.logits, span.count)
        return Piece(cache_id, span.start, self._random(span.count), rows, range(0))

    # Measuring

    def _bare(self, passes: Sequence[StepTables]) -> float:
        """Seconds of the passes alone; the first runs once before, so that what it reads is where a step finds it."""
        self._forward(passes[0])
        begun = time.perf_counter()
        for tables in passes:
            self._forward(tables)
        return time.perf_counter() - begun

    def _forward(self, tables: StepTables) -> None:
        if self._lm.replay is not None:
            self._lm.replay(self._lm.kernels, tables)
        else:
            self._lm.kernels.begin(tables)
            self._lm.network(self._lm.kernels)

    def _whole(self, workload: Workload, ids: Sequence[str]) -> float:
        """Seconds of the same work through the language model, greedy tokens and all."""
        history = self._random(workload.length)
        sampling = self._sampling(history)
        decodes = workload.kind is Kind.DECODE
        steps = workload.tokens if decodes else 1
        count = workload.tokens // steps
        seconds = []
        for step in range(steps + decodes):  # the first decode only brings what is read to where a step finds it
            start = workload.context + step
            spans = [Span(each, start, history[start : start + count], sampling=sampling) for each in ids]
            begun = time.perf_counter()
            self._run_whole(spans)
            seconds.append(time.perf_counter() - begun)
        return sum(seconds[-steps:])

    def _run_whole(self, spans: Sequence[Span]) -> None:
        for result in self._lm.run(StepBatch(tuple(spans))).results:
            if isinstance(result, FerrumError):
                raise result

    def _serve(self, workload: Workload) -> float:
        """Seconds from handing all requests over to the last token of the last."""
        if self._llm is None:
            host = ThreadHost(lambda: with_scheduler(self.executor, self._config, self._name))
            self._llm = LLM.from_parts(Parts(host=host, tokenizer=None, generation=GenerationConfig()))
        params = SamplingParams(temperature=0.0, max_tokens=workload.tokens, ignore_eos=True)
        prompts = [list(self._random(workload.context)) for _ in range(workload.sequences)]
        begun = time.perf_counter()
        outputs = self._llm.generate(prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - begun
        for output in outputs:
            if (error := output.outputs[0].error) is not None:
                raise error
        return seconds

    def _random(self, count: int) -> tuple[int, ...]:
        """Random token ids."""
        return tuple(self._tokens.randrange(self.executor.info.vocab_size) for _ in range(count))

    def _sampling(self, history: Sequence[int]) -> Sampling:
        return Sampling(_GREEDY, seed=0, prompt_length=0, history=history)
