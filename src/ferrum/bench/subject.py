"""The measured model: bare forward passes, whole steps with sampling, and requests through the engine."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Self

from ferrum.bench.limits import Costs, layer_kv_bytes
from ferrum.bench.workloads import Kind, SpanShape, Workload
from ferrum.cache.page_table import PageCopy
from ferrum.client.llm import LLM
from ferrum.client.model_client import Parts
from ferrum.core.config import EngineConfig
from ferrum.core.errors import FerrumError, KvExhausted
from ferrum.core.params import SamplingParams
from ferrum.core.step import Sampling, Span, StepBatch
from ferrum.engine.host import ThreadHost
from ferrum.engine.recipe import with_scheduler
from ferrum.kernels.interface import NetworkOutput, StepTables
from ferrum.kernels.recorded_program import record
from ferrum.runtime.local_executor import LocalStepExecutor
from ferrum.runtime.step_tables import Piece, stage
from ferrum.text.generation_config import GenerationConfig

_GREEDY: Final = SamplingParams(temperature=0.0)
_MODEL_PAGE: Final = "bench-page"


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of one sample.

    Attributes:
        bare: the forward passes alone, one native call each; for SERVE and models with states equal to `whole`.
        whole: the same work up to its sampled tokens; for SERVE from sending the requests to their last token.
    """

    bare: float
    whole: float


class ExecutorSubject:
    """An executor used by the benchmark alone. Leaving its context shuts the executor down.

    Args:
        executor: loaded, with a replayed program.
        config: the options it was loaded with.
        name: of the model.
    """

    def __init__(self, executor: LocalStepExecutor, config: EngineConfig, name: str) -> None:
        self.executor = executor
        self._lm = executor.lm
        self._pages = self._lm.pages
        # Every run of a workload must compute all of it.
        self._config = replace(config, prefix_cache=False)
        self._name = name
        self._tokens = random.Random(0)
        self._llm: LLM | None = None
        self._spreads: dict[str, float] = {}
        # One computed page, of which stored contexts are copies: speed does not depend on what pages hold.
        size = min(executor.traits.max_sequence_length, *(group.page_size for group in self._pages.groups))
        self._run_whole([Span(_MODEL_PAGE, 0, self._random(size), sampling=self._sampling(()))])

    @cached_property
    def costs(self) -> Costs:
        """The work of the model's operations if experts are chosen uniformly; see `costs_of`."""
        replay = self._lm.replay
        program = record(self._lm.network) if replay is None else replay.program
        group_bytes = [part.page_bytes / part.page_size for part in self.executor.memory_plan.pool]
        return Costs(program, self.executor.traits.kv_dtype.value, layer_kv_bytes(program, group_bytes))

    def costs_of(self, workload: Workload) -> Costs:
        """Return the work of the model's operations, with the experts that a workload's last sample read.

        Backends that do not count experts, and workloads without a sample, have those of uniform routing.
        """
        return replace(self.costs, spread=self._spreads.get(workload.name, 1.0))

    @property
    def limits(self) -> dict[str, int]:
        """The limits that `fitting_workloads` takes."""
        context = self.executor.traits.max_sequence_length
        return {"context": context, "sequences": self._config.max_sequences}

    @property
    def max_rows(self) -> int:
        """The most tokens of one forward pass."""
        return self._lm.max_rows

    @property
    def threads(self) -> int:
        """Threads of the kernels."""
        return self._lm.kernels.threads

    def run(self, workload: Workload) -> Times:
        """Take one sample.

        Raises:
            KvExhausted: the pool is too small for the workload.
        """
        if workload.kind is Kind.SERVE:
            read = self._experts_read()
            seconds = self._serve(workload)
            self._note_experts(workload, read)
            return Times(seconds, seconds)
        with self._sequences(workload) as ids:
            read = self._experts_read()
            whole = self._whole(workload, ids)
        if self._pages.states is not None:  # a step can run again only after its tables were made again
            self._note_experts(workload, read)
            return Times(whole, whole)
        with self.staged(workload) as passes:
            self.forward(passes[0])  # warms the caches as the step before it would
            read = self._experts_read()
            begun = time.perf_counter()
            for tables in passes:
                output = self.forward(tables)
            self._lm.kernels.collect(output)  # a device may still compute
            bare = time.perf_counter() - begun
        self._note_experts(workload, read)
        return Times(bare, whole)

    @contextmanager
    def staged(self, workload: Workload) -> Iterator[list[StepTables]]:
        """Yield the tables of a sample's passes, with the sequences they belong to stored in the block.

        Every DECODE step repeats the same token after the stored context.
        """
        with self._sequences(workload) as ids:
            tables = []
            for spans in workload.passes(self.max_rows):
                pieces = [self._piece(cache_id, span) for cache_id, span in zip(ids, spans, strict=True)]
                tables.append(stage(pieces, self._pages))
                if workload.kind is not Kind.DECODE:
                    for cache_id, span in zip(ids, spans, strict=True):
                        self._pages.commit(cache_id, span.start + span.count)
            yield tables

    def forward(self, tables: StepTables) -> NetworkOutput:
        """Run one forward pass; on a device, begin it."""
        if self._lm.replay is not None:
            return self._lm.replay.submit(self._lm.kernels, tables)
        self._lm.kernels.begin(tables)
        return self._lm.network(self._lm.kernels)

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

    def _experts_read(self) -> int | None:
        return None if self._lm.replay is None else self._lm.replay.experts_read()

    def _note_experts(self, workload: Workload, before: int | None) -> None:
        """Keep how many experts a sample read, for the limits of its workload."""
        expected, after = self.costs.expected_experts(workload.passes(self.max_rows)), self._experts_read()
        if expected and before is not None and after is not None:
            spread = (after - before) / expected
            # Requests may take more passes than the ideal schedule, which read more.
            self._spreads[workload.name] = min(1.0, spread) if workload.kind is Kind.SERVE else spread

    @contextmanager
    def _sequences(self, workload: Workload) -> Iterator[list[str]]:
        """Yield ids of sequences that hold the workload's context, each on its own pages."""
        ids = [f"bench-{index}" for index in range(workload.sequences)]
        try:
            for cache_id in ids:
                self._store(cache_id, workload.context)
            yield ids
        finally:
            for cache_id in ids:
                self._pages.release(cache_id)

    def _store(self, cache_id: str, length: int) -> None:
        """Begin a sequence of `length` stored tokens, pass by pass as a prompt: window groups free pages meanwhile."""
        self._reserve(cache_id, 0)
        while (done := self._pages.length(cache_id)) < length:
            following = min(length, done + self.max_rows)
            if self._pages.states is not None:  # a state has to see its tokens
                tokens = self._random(following)
                self._run_whole([Span(cache_id, done, tokens[done:], sampling=self._sampling(tokens))])
                continue
            self._reserve(cache_id, following)
            self._pages.commit(cache_id, following)
        copies = [
            PageCopy(group.name, self._pages.row(_MODEL_PAGE, group.name)[0], page)
            for group in self._pages.groups
            for page in self._pages.row(cache_id, group.name)
            if page >= 0
        ]
        self._lm.pool.copy_pages(copies)

    def _reserve(self, cache_id: str, length: int) -> None:
        if not self._pages.reserve(cache_id, length):
            raise KvExhausted(f"the KV pool has no room for a sequence of {length} tokens (raise --kv-capacity)")

    def _piece(self, cache_id: str, span: SpanShape) -> Piece:
        self._reserve(cache_id, span.start + span.count)
        rows = range(span.count - span.logits, span.count)
        return Piece(cache_id, span.start, self._random(span.count), rows, range(0), range(span.count))

    def _whole(self, workload: Workload, ids: Sequence[str]) -> float:
        """Return the seconds of the same work through the language model, including greedy sampling."""
        histories = [self._random(workload.length) for _ in ids]  # equal ones would choose equal experts
        decodes = workload.kind is Kind.DECODE
        steps = workload.tokens if decodes else 1
        count = workload.tokens // steps
        seconds = []
        for step in range(steps + decodes):  # the first decode only warms the caches
            start = workload.context + step
            spans = [
                Span(each, start, history[start : start + count], sampling=self._sampling(history))
                for each, history in zip(ids, histories, strict=True)
            ]
            begun = time.perf_counter()
            self._run_whole(spans)
            seconds.append(time.perf_counter() - begun)
        return sum(seconds[-steps:])

    def _run_whole(self, spans: Sequence[Span]) -> None:
        for result in self._lm.run(StepBatch(tuple(spans))).results:
            if isinstance(result, FerrumError):
                raise result

    def _serve(self, workload: Workload) -> float:
        """Return the seconds from sending all requests to the last token of the last."""
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
        """Return random token ids."""
        return tuple(self._tokens.randrange(self.executor.info.vocab_size) for _ in range(count))

    def _sampling(self, history: Sequence[int]) -> Sampling:
        return Sampling(_GREEDY, seed=0, prompt_length=0, history=history)
