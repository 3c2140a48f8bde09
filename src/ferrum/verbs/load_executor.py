"""`LocalExecutor`, the executor of a model in this process with all verbs, and `load_executor`, which makes one."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from ferrum.contract.model_info import ExecutorTraits, ModelInfo
from ferrum.core.config import PAGE_SIZE, ModelConfig, Switches
from ferrum.core.option_fields import as_text, check_flag
from ferrum.core.snapshots import LoraMetricsSnapshot
from ferrum.core.span_checks import check_kind
from ferrum.core.step import AdapterUse
from ferrum.runtime.decoder_lm import DecoderLM
from ferrum.runtime.load import MAX_ROWS, build_executor
from ferrum.runtime.local_executor import LocalStepExecutor
from ferrum.sources.adapters.adapter_file import AdapterFile
from ferrum.sources.parameters import Progress
from ferrum.verbs.handles import NamedSequences
from ferrum.verbs.io_types import KvCacheHandle
from ferrum.verbs.model_executor import ModelExecutor
from ferrum.verbs.stored_sequence import StoredSequence, begin_stored, origin_of, read_stored


class LocalExecutor(LocalStepExecutor, ModelExecutor):
    """An executor over a language model in this process, with all verbs, KV tiers and steps in flight.

    Args:
        lm: the language model; its page table is the executor's.
        info, traits: see `ModelExecutor`.
        log_tokens: see the property.
        cache_prefix: see `ModelExecutor`.
        open_adapter: reads the files of an adapter for this model; None: `read_adapter` is refused.
    """

    def __init__(
        self,
        lm: DecoderLM,
        *,
        info: ModelInfo,
        traits: ExecutorTraits,
        log_tokens: bool = False,
        cache_prefix: str = "llm-cache",
        open_adapter: Callable[[str], AdapterFile] | None = None,
    ) -> None:
        super().__init__(lm, info=info, traits=traits, log_tokens=log_tokens, open_adapter=open_adapter)
        self.sequences = NamedSequences(info, traits.kv_dtype, lm.pages, cache_prefix)  # engines know no prefix

    def export_sequence(self, handle: KvCacheHandle) -> StoredSequence:
        """Return the keys and values of a sequence as bytes. The sequence stays.

        Raises:
            InvalidHandle, UnknownSequence, StaleHandle: an unusable handle.
            Unsupported: the sequence has adapters, or states of recurrent layers.
        """
        with self._exclusive():
            self.sequences.check(handle, exact=True)
            return read_stored(self.lm, handle.cache_id, origin_of(self.info, self.traits, self.lm))

    def import_sequence(self, stored: StoredSequence) -> KvCacheHandle:
        """Begin a sequence with what another one has stored, on any device: it continues with the same bits.

        Raises:
            RequestError: it is of another model, other weights, another arithmetic, or another layout of pages.
            ContextOverflow, KvExhausted: there is no room for it.
            Unsupported: the model has recurrent layers.
        """
        with self._exclusive():
            cache_id = self.sequences.new_id()
            begin_stored(self.lm, cache_id, stored, origin_of(self.info, self.traits, self.lm))
            return self.sequences.newest(cache_id)

    def lora_metrics_snapshot(self) -> LoraMetricsSnapshot:
        return LoraMetricsSnapshot() if self._lm is None else self._lm.adapted.snapshot(self.pages.adapter_keys())

    def _adapters_for(self, cache_id: str, name: str | None) -> tuple[AdapterUse, ...]:
        return self.lm.adapters_for(cache_id, name)


def load_executor(
    model: str | os.PathLike[str],
    *,
    device: str = "cpu",
    dtype: str = "auto",
    quantize: str | None = None,
    kv_dtype: str = "auto",
    kernels: str = "auto",
    isa: str = "auto",
    threads: int | None = None,
    tensor_parallel_size: int = 1,
    max_batch_size: int | None = None,
    max_sequence_length: int | None = None,
    kv_capacity: int | None = None,
    models_dir: str | os.PathLike[str] | None = None,
    cuda_graphs: bool = True,
    memory_pool_size: int | None = None,
    page_size: int = PAGE_SIZE,
    max_rows: int = MAX_ROWS,
    run_ahead: int = 0,
    replay: bool | None = None,
    log_tokens: bool | None = None,
    cache_prefix: str = "llm-cache",
    progress: Progress | None = None,
) -> LocalExecutor:
    """Load a model. The executor is ready: `status().is_ready` is true before the first step.

    Args:
        model: directory, GGUF file or hub id.
        device, ..., cuda_graphs: see `ModelConfig`.
        memory_pool_size: maximum bytes of the KV pool; None follows `kv_capacity`.
        page_size: tokens per page of the KV pool.
        max_rows: maximum tokens of one forward pass; a larger step takes several.
        run_ahead: largest depth of `LocalExecutor.run_ahead` for a model with states, which are planned for it.
        replay: run the recorded program; None follows the environment (FERRUM_DISABLE_GRAPHS).
        log_tokens: log the best tokens of each span; None follows the environment (FERRUM_LOG_TOKENS).
        cache_prefix: new sequences are named `<prefix>-0`, `<prefix>-1`, ...
        progress: called with the bytes loaded and the bytes in total.

    Raises:
        ConfigError: an invalid option; `param` names it.
        Unsupported: a feature or architecture that is not implemented.
        ModelNotFound, CheckpointError: the model does not exist, or its files are damaged.
        CapacityError: not enough memory for the weights, the KV pool or the buffers of a step.
    """
    config = ModelConfig(
        model=as_text(model), device=device, dtype=dtype, quantize=quantize, kv_dtype=kv_dtype,
        kernels=kernels, isa=isa, threads=threads, tensor_parallel_size=tensor_parallel_size,
        max_batch_size=max_batch_size, max_sequence_length=max_sequence_length, kv_capacity=kv_capacity,
        models_dir=as_text(models_dir), cuda_graphs=cuda_graphs, switches=_switches(replay, log_tokens),
    )  # fmt: skip
    check_kind(cache_prefix, str, param="cache_prefix")
    return build_executor(
        partial(LocalExecutor, cache_prefix=cache_prefix),
        config,
        memory_pool_size=memory_pool_size, page_size=page_size, max_rows=max_rows, run_ahead=run_ahead,
        progress=progress,
    )  # fmt: skip


def _switches(replay: bool | None, log_tokens: bool | None) -> Switches:
    """Return the environment's switches, with arguments in their place."""
    switches = Switches.from_environment()
    if replay is not None:
        check_flag("replay", replay)
        switches = replace(switches, disable_graphs=not replay)
    if log_tokens is not None:
        check_flag("log_tokens", log_tokens)
        switches = replace(switches, log_tokens=log_tokens)
    return switches
