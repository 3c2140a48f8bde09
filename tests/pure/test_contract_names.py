"""The contract's names exist: in `import ferrum`, as arguments, fields and verbs."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import Any

import pytest

import ferrum

contract = pytest.mark.contract

NAMES = {
    "0": "load_executor LLM SamplingParams AsyncEngine RequestOutput CompletionOutput Logprob",
    "1": """KvCacheHandle GenericKvCacheHandle PrefillInput PrefillOutput DecodeInput DecodeOutput UnifiedBatch
            UnifiedBatchItem SpeculativeDecodeOutput LogitsPolicy ModelInfo DataType Device TokenId""",
    "2": """ModelExecutor StepBatch PendingStep ExecutorCapabilities AttentionType MemoryRequirements MemoryPlan
            ExecutorStatus ExecutorState ExecutorMemoryUsage ExecutorMetrics BatchModelExecutor SpeculativeExecutor
            ExecutorRegistry ModelExecutorFactory ExecutorType ExecutorConfig ExecutorAttentionConfig
            ExecutorMemoryConfig OptimizationConfig""",
    "3": """DecoderOnlyLLM DecoderLM LlmRuntimeConfig LlmExecutor ContextOverflow KvExhausted UnknownSequence
            StaleHandle InvalidHandle InvalidToken ExecutorInUse Unsupported""",
}
FIELDS = {
    "RequestOutput": "request_id prompt prompt_token_ids prompt_logprobs outputs finished metrics",
    "CompletionOutput": "index text token_ids cumulative_logprob logprobs finish_reason stop_reason",
    "Logprob": "logprob rank decoded_token",
    "KvCacheHandle": "cache_id sequence_length num_layers num_kv_heads head_dim dtype device block_table generation",
    "PrefillInput": """input_ids attention_mask position_ids kv_cache logits return_hidden_states
                       return_attention_weights""",
    "PrefillOutput": "logits kv_cache hidden_states attention_weights",
    "DecodeInput": "input_ids kv_cache position_ids return_hidden_states return_attention_weights",
    "DecodeOutput": "logits kv_cache hidden_state attention_weights",
    "UnifiedBatchItem": "seq_id q_tokens pos_offset is_final_chunk logits_policy adapter",
    "SpeculativeDecodeOutput": "accepted_tokens next_logits kv_cache",
    "ExecutorCapabilities": """max_batch_size max_sequence_length attention_mechanisms supports_dynamic_batching
        supports_continuous_batching supports_speculative_decoding supports_tensor_parallelism
        supports_pipeline_parallelism supported_dtypes supported_devices memory_requirements""",
    "MemoryRequirements": """parameter_memory activation_memory_per_token kv_cache_memory_per_token overhead_memory""",
    "ExecutorStatus": """state is_ready current_batch_size prefill_operations decode_operations avg_prefill_time_ms
        avg_decode_time_ms memory_usage last_operation backend numerics_id""",
    "ExecutorMemoryUsage": "allocated_bytes used_bytes peak_bytes utilization_percent",
    "ExecutorMetrics": """total_operations prefill_operations decode_operations avg_prefill_latency avg_decode_latency
        p95_prefill_latency p95_decode_latency throughput_tps memory_efficiency batch_utilization""",
    "ExecutorConfig": """model_info executor_type device dtype max_batch_size max_sequence_length attention_config
        memory_config optimization_config executor_options""",
    "ExecutorAttentionConfig": """attention_type enable_flash_attention enable_paged_attention block_size
        sliding_window_size""",
    "ExecutorMemoryConfig": "enable_memory_pooling memory_pool_size enable_kv_cache_sharing max_memory_usage",
    "OptimizationConfig": """enable_cuda_graphs enable_kernel_fusion enable_mixed_precision optimization_level
        custom_flags""",
    "LlmRuntimeConfig": "hidden_size num_layers num_kv_heads head_dim vocab_size max_seq_len",
}
PROPERTIES = {
    "KvCacheHandle": "request_cache_id",
    "PrefillInput": "batch_size sequence_length with_kv_cache with_attention_mask with_position_ids",
    "DecodeInput": "batch_size sequence_length with_kv_cache with_position_ids",
    "UnifiedBatch": "total_q_tokens num_sampled_items",
    "SpeculativeDecodeOutput": "acceptance_count",
    "PrefillOutput": "last_token_logits",
    "MemoryRequirements": "calculate_total_memory",
    "ExecutorRegistry": "register get remove list_names get_metrics",
    "ModelExecutorFactory": "create_executor create_batch_executor supported_types validate_config",
    "ModelExecutor": """info submit prefill batch_prefill decode batch_decode unified_decode forward_verify truncate_kv
        truncate_kv_for_cache_id fork release_cache forward speculative_decode capabilities memory_requirements
        kv_capacity status metrics cache_metrics_snapshot lora_metrics_snapshot optimal_batch_size supports_batch_size
        warmup shutdown reset __enter__ __exit__""",
    "DecoderOnlyLLM": """config prefill decode decode_batch unified_forward forward_verify truncate_kv fork release
        reset kv_capacity set_lora_adapter""",
}
MEMBERS = {
    "LogitsPolicy": "NONE LAST ALL",
    "AttentionType": "MultiHead MultiQuery GroupedQuery Flash Paged SlidingWindow Latent",
    "ExecutorState": "Initializing Ready Busy Error Shutdown",
    "ExecutorType": "Sequential Batch ContinuousBatch Speculative PipelineParallel TensorParallel",
}


def public(name: str) -> Any:
    return getattr(ferrum, name)


def test_everything_is_importable_from_ferrum() -> None:
    assert [name for names in NAMES.values() for name in names.split() if not hasattr(ferrum, name)] == []


@contract("2.capabilities")
@contract("2.status")
@contract("2.metrics")
@pytest.mark.parametrize("record", FIELDS)
def test_records_have_the_fields_of_the_contract_and_are_frozen(record: str) -> None:
    found = public(record)
    assert set(FIELDS[record].split()) <= {each.name for each in fields(found)}
    assert found.__dataclass_params__.frozen or record in ("RequestOutput", "CompletionOutput")


@contract("3.config")
def test_a_models_configuration_has_no_architecture_details() -> None:
    assert [each.name for each in fields(ferrum.LlmRuntimeConfig)] == FIELDS["LlmRuntimeConfig"].split()


@pytest.mark.parametrize("name", PROPERTIES)
def test_types_have_the_methods_of_the_contract(name: str) -> None:
    assert set(PROPERTIES[name].split()) <= set(dir(public(name)))


@contract("1.LogitsPolicy")
@pytest.mark.parametrize("name", MEMBERS)
def test_enumerations_have_the_members_of_the_contract(name: str) -> None:
    assert {member.name.replace("_", "").lower() for member in public(name)} == set(MEMBERS[name].lower().split())


def defaults(call: Any) -> dict[str, object]:
    return {name: parameter.default for name, parameter in inspect.signature(call).parameters.items()}


@contract("0.load_executor")
def test_the_front_door_takes_the_options_of_the_contract() -> None:
    told = {"device": "cpu", "dtype": "auto", "quantize": None, "kv_dtype": "auto", "kernels": "auto"}
    found = defaults(ferrum.load_executor)
    assert found | told == found
    assert {"model", "max_batch_size", "max_sequence_length", "kv_capacity"} <= set(found)


@contract("0.LLM")
@contract("0.AsyncEngine")
def test_engines_take_the_arguments_of_the_contract() -> None:
    for call, order in (
        (ferrum.LLM.generate, ["self", "prompts", "sampling_params", "use_tqdm"]),
        (ferrum.LLM.chat, ["self", "messages"]),
        (ferrum.LLM.stream, ["self", "prompt"]),
        (ferrum.LLM.score, ["self", "prompts"]),
        (ferrum.AsyncEngine.generate, ["self", "prompt", "sampling_params", "request_id", "priority", "deadline"]),
    ):
        assert list(defaults(call))[: len(order)] == order
    assert defaults(ferrum.LLM.generate)["use_tqdm"] is True
    told = {"request_id": None, "priority": 0, "deadline": None}
    assert defaults(ferrum.AsyncEngine.generate) | told == defaults(ferrum.AsyncEngine.generate)
