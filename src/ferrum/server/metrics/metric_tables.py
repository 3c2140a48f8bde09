"""Names, help texts, labels and buckets of the engine's metrics, as data."""

from __future__ import annotations

from typing import Final

from ferrum.core.types import FinishReason

LABELS: Final = ("model_name", "engine")
ENGINE: Final = "0"
"""There is one engine."""

SLEEP_STATES: Final = ("awake", "weights_offloaded", "discard_all")
SOURCES: Final = ("local_compute", "local_cache_hit", "external_kv_transfer")
"""Origins of the keys and values of prompt tokens."""

ENDS: Final = ("stop", "length", "abort", "error", "repetition")
FINISHES: Final = {reason: reason.value for reason in FinishReason} | {FinishReason.DEADLINE: "abort"}
"""The label of each finish reason; vLLM has no deadlines."""

FIRST_TOKEN_BUCKETS: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
)  # fmt: skip
TOKEN_BUCKETS: Final = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
REQUEST_BUCKETS: Final = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
)  # fmt: skip
CHOICE_BUCKETS: Final = (1.0, 2.0, 5.0, 10.0, 20.0)
STEP_BUCKETS: Final = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
PREEMPTION_BUCKETS: Final = (0, 1, 2, 5, 10, 20)

GAUGES: Final[dict[str, tuple[str, str]]] = {
    "vllm:num_requests_running": ("Sequences that hold pages.", "running"),
    "vllm:num_requests_waiting": ("Sequences that wait for pages.", "waiting"),
    "vllm:kv_cache_usage_perc": ("Part of the KV pages in use, 0 to 1.", "kv_usage"),
    "ferrum:prefix_cache_pages": ("Pages in the prefix cache.", "prefixes.cached_pages"),
    "ferrum:lora_adapters": ("Adapters in memory.", "adapters.loaded"),
    "ferrum:lora_bytes": ("Bytes of the adapters in memory.", "adapters.nbytes"),
    "ferrum:shared_pages": ("Pages held by several sequences.", "prefixes.shared_pages"),
    "ferrum:state_slots": ("Slots of states of recurrent layers.", "prefixes.state_slots"),
    "ferrum:state_bytes": ("Bytes of these slots.", "prefixes.state_bytes"),
    "ferrum:state_slots_used": ("Slots that sequences hold.", "prefixes.used_slots"),
    "ferrum:state_snapshots": ("Slots with which other sequences can begin.", "prefixes.snapshots"),
}
"""Help and attribute of `EngineStats`."""

TOTALS: Final[dict[str, tuple[str, str]]] = {
    "vllm:num_preemptions": ("Preempted sequences.", "preemptions"),
    "vllm:prefix_cache_queries": ("Prompt tokens looked up in the prefix cache.", "prefixes.query_tokens"),
    "vllm:prefix_cache_hits": ("Prompt tokens found there.", "prefixes.hit_tokens"),
    "vllm:external_prefix_cache_queries": (
        "Prompt tokens looked up in host memory and on disk.",
        "prefixes.external_query_tokens",
    ),
    "vllm:external_prefix_cache_hits": ("Prompt tokens found there.", "prefixes.external_hit_tokens"),
    "vllm:spec_decode_num_drafts": ("Verified drafts.", "speculation.drafts"),
    "vllm:spec_decode_num_draft_tokens": ("Tokens of these drafts.", "speculation.draft_tokens"),
    "vllm:spec_decode_num_accepted_tokens": ("Accepted draft tokens.", "speculation.accepted_tokens"),
    "ferrum:lora_loads": ("Adapters that were read into memory.", "adapters.loads"),
    "ferrum:lora_evictions": ("Adapters that made room for others.", "adapters.evictions"),
    "ferrum:prefix_cache_evicted_pages": ("Evicted pages.", "prefixes.evicted_pages"),
    "ferrum:state_snapshot_hits": ("Sequences that began with a snapshot.", "prefixes.snapshot_hits"),
    "ferrum:state_snapshots_evicted": ("Evicted snapshots.", "prefixes.evicted_snapshots"),
    "ferrum:prefix_cache_restored_pages": ("Pages restored from host memory or disk.", "prefixes.restored_pages"),
}
"""Counters of totals in the engine's reports: help and attribute of `EngineStats`."""

COUNTERS: Final = {
    "vllm:prompt_tokens": "Prompt tokens of requests that were begun.",
    "vllm:prompt_tokens_cached": "Prompt tokens that came from a cache.",
    "vllm:mm_cache_queries": "Always 0: images are not supported.",
    "vllm:mm_cache_hits": "Always 0: images are not supported.",
    "vllm:corrupted_requests": "Choices that ended because of a NaN.",
}

SIZES: Final = {
    "vllm:request_prompt_tokens": "Prompt tokens of a choice.",
    "vllm:request_generation_tokens": "Generated tokens of a choice.",
    "vllm:request_max_num_generation_tokens": "Generated tokens of the longest choice of a request.",
    "vllm:request_params_max_tokens": "max_tokens of a request.",
    "vllm:request_prefill_kv_computed_tokens": "Prompt tokens of a request that were not cached.",
}
"""Histograms of tokens, whose buckets depend on the model's context."""

HISTOGRAMS: Final[dict[str, tuple[str, tuple[float, ...]]]] = {
    "vllm:request_params_n": ("n of a request.", CHOICE_BUCKETS),
    "vllm:iteration_tokens_total": ("Tokens of a step.", STEP_BUCKETS),
    "vllm:request_num_preemptions": ("Preemptions of a choice.", PREEMPTION_BUCKETS),
    "vllm:time_to_first_token_seconds": ("From arrival to the first token.", FIRST_TOKEN_BUCKETS),
    "vllm:request_time_per_output_token_seconds": ("Mean time between tokens of a choice.", TOKEN_BUCKETS),
    "vllm:e2e_request_latency_seconds": ("From arrival to the end.", REQUEST_BUCKETS),
    "vllm:request_queue_time_seconds": ("From arrival to leaving the queue for the last time.", REQUEST_BUCKETS),
    "vllm:request_inference_time_seconds": ("From leaving the queue to the last token.", REQUEST_BUCKETS),
    "vllm:request_prefill_time_seconds": ("From leaving the queue to the first token.", REQUEST_BUCKETS),
    "vllm:request_decode_time_seconds": ("From the first token to the last one.", REQUEST_BUCKETS),
}
