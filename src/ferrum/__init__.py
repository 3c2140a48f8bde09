"""ferrum: an exact, small and fast inference engine for open-weight language models.

    import ferrum

    with ferrum.LLM("ferrum-tiny") as llm:
        print(llm.generate("def add(a, b):")[0].outputs[0].text)

Names are loaded at first use, so that `import ferrum` imports no library. `__init__.pyi` has their types.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

_HOMES: Final = {
    name: home
    for home, names in {
        "ferrum.cache.page_table": "PageGroup PageTable",
        "ferrum.contract.decoder_llm": "DecoderOnlyLLM LlmRuntimeConfig LogitsPolicy StepwiseLLM UnifiedItem",
        "ferrum.contract.model_info": "DataType Device ExecutorTraits ModelInfo",
        "ferrum.contract.sequences": "SequenceStore StoreGroup",
        "ferrum.contract.step_executor": "ExecutorState",
        "ferrum.core.config": "EngineConfig ModelConfig Switches",
        "ferrum.core.errors": (
            "CapacityError CheckpointError ConfigError ContextOverflow EngineDead ExecutorInUse FerrumError "
            "HubUnreachable InvalidGrammar InvalidHandle InvalidSchema InvalidToken InvalidTransition KvExhausted "
            "ModelGated ModelNotFound NonFiniteLogits NothingAllowed QueueFull RequestError StaleHandle StepError "
            "UnknownSequence Unsupported"
        ),
        "ferrum.core.kv_shape": "KvShape",
        "ferrum.core.memory_plan": "MemoryPlan MemoryRequirements PoolPart",
        "ferrum.core.params": "SamplingParams",
        "ferrum.core.snapshots": "CacheMetricsSnapshot LoraMetricsSnapshot PrefixCounts SpeculationCounts",
        "ferrum.core.step": (
            "CARRY AdapterUse FinishedStep Grid Hidden Inputs PendingStep Rows Sampling Score Span SpanExtras "
            "SpanResult StepBatch StepOutput TokenLogprobs Want"
        ),
        "ferrum.core.structured_outputs": "StructuredOutputs",
        "ferrum.core.types": "FinishReason",
        "ferrum.client.adapter_registry": "LoRARequest",
        "ferrum.client.async_engine": "AsyncEngine",
        "ferrum.client.llm": "LLM",
        "ferrum.client.request_output": "CompletionOutput Delta Logprob RequestMetrics RequestOutput Usage",
        "ferrum.client.session": "Session",
        "ferrum.runtime.decoder_lm": "DecoderLM",
        "ferrum.runtime.load": "ModelPlan plan_model",
        "ferrum.server.server_config": "ServerConfig",
        "ferrum.verbs.adapted_llm": "AdaptedLLM MinimalLLM",
        "ferrum.verbs.async_executor": "AsyncModelExecutor",
        "ferrum.verbs.executor_registry": "AnyExecutor BatchModelExecutor ExecutorRegistry SpeculativeExecutor",
        "ferrum.verbs.executor_reports": (
            "AttentionType ExecutorCapabilities ExecutorMemoryUsage ExecutorMetrics ExecutorStatus"
        ),
        "ferrum.verbs.factory": (
            "ExecutorAttentionConfig ExecutorConfig ExecutorMemoryConfig ExecutorType ModelExecutorFactory "
            "OptimizationConfig"
        ),
        "ferrum.verbs.io_types": (
            "DecodeInput DecodeOutput GenericKvCacheHandle KvCacheHandle PrefillInput PrefillOutput "
            "SpeculativeDecodeOutput TokenId UnifiedBatch UnifiedBatchItem"
        ),
        "ferrum.verbs.llm_executor": "LlmExecutor",
        "ferrum.verbs.load_executor": "LocalExecutor load_executor",
        "ferrum.verbs.model_executor": "ModelExecutor",
    }.items()
    for name in names.split()
}
"""The module of each public name."""

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'ferrum' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return [*globals(), *_HOMES]
