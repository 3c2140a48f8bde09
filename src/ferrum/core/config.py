"""The options of the program: one frozen tree, complete once it is built. Nothing else reads the environment.

Command lines and files build an `EngineConfig`; constructors take single values, never the tree. A field's metadata has
its help text. Options of the HTTP server are in `server/server_config.py`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ferrum.core.devices import check_device
from ferrum.core.errors import ConfigError
from ferrum.core.json_record import JsonRecord
from ferrum.core.logging import warn_once
from ferrum.core.lora_option import named_adapters
from ferrum.core.option_fields import about, check_options, listed, option
from ferrum.core.span_checks import is_one_of
from ferrum.core.values import shown

ENVIRONMENT_PREFIX: Final = "FERRUM_"
_SWITCHES: Final = ("DISABLE_GRAPHS", "DISABLE_CUDA_RUNNER", "LOG_TOKENS", "PAGED_KV")
"""Names after the prefix."""

_API_KEY: Final = "API_KEY"
_MODELS_DIR: Final = "MODELS_DIR"
_RANKS: Final = "TORCHRUN_RANKS"
_KNOWN: Final = (*_SWITCHES, _API_KEY, _MODELS_DIR, _RANKS)

DTYPES: Final = ("auto", "bfloat16", "float16", "float32")
QUANTIZATIONS: Final = (None, "q8_0", "q6_k", "q4_k_m", "q4_0", "int8", "int4")
KV_DTYPES: Final = ("auto", "float32", "bfloat16", "int8")
KERNELS: Final = ("auto", "native", "reference", "cuda")
ISAS: Final = ("auto", "avx512", "avx512_vnni", "avx2_vnni", "avx2", "neon_dot", "neon", "portable")
POLICIES: Final = ("fcfs", "priority", "fair")
HOSTS: Final = ("thread", "process")
GENERATION_CONFIGS: Final = ("auto", "none")

NGRAM: Final = "ngram"
MAX_DRAFT: Final = 16
"""Longest draft: a layer with a sliding window keeps this many extra tokens, so that a draft can be rolled back."""

USUAL_DRAFT: Final = 8
"""Default length limit of a draft."""

PAGE_SIZE: Final = 64
"""Default tokens per page: attention streams pages of this size at full bandwidth."""

MAX_PAGE_SIZE: Final = 1 << 16
"""Limit of tokens per page; a sequence leaves half a page empty on average."""

MAX_BATCH_SIZE: Final = 1 << 16
"""Limit of sequences in one step: sizes of buffers and pools stay far from 64 bits."""

USUAL_BATCH: Final = 256
"""Default limit of sequences in one step. It takes no memory: the pool is sized for `FULL_SEQUENCES`, its pages
bound the sequences that run, and the step time (`decode_seconds`) those that decode together.
"""

FULL_SEQUENCES: Final = 32
"""Sequences of full length that the KV pool holds by default, if the memory suffices."""

USUAL_STEP: Final = 512
"""Default token limit of one step."""

MAX_REPLICAS: Final = 64
"""Most engine processes of one client."""

STALL_SECONDS: Final = 120.0
"""Default of `stall_seconds`: longer than any step, and than the compilation of any grammar."""

MAX_THREADS: Final = 1024
"""Largest thread team: with far more threads than CPUs no step ends."""

MAX_RANKS: Final = 64
"""Largest number of ranks: more than the memory nodes of a machine."""

_TRUE: Final = ("1", "true", "yes", "on")
_FALSE: Final = ("", "0", "false", "no", "off")


def auto_kv_dtype(dtype: str) -> str:
    """Return the format of keys and values for weights of a dtype: never less exact than theirs.

    There is no float16 store, and bfloat16 has 3 bits less than float16: float16 weights take float32.
    """
    return "bfloat16" if dtype == "bfloat16" else "float32"


def check_quantization(scheme: object) -> None:
    """Refuse a value that is not in `QUANTIZATIONS`. Raises ConfigError."""
    if isinstance(scheme, str) and scheme == "int4-all":
        raise ConfigError("int4-all was removed: use q4_0, or q4_k_m, which is more exact", param="quantize")
    if not is_one_of(scheme, QUANTIZATIONS):
        raise ConfigError(f"must be one of {listed(QUANTIZATIONS)}, not {shown(scheme)}", param="quantize")


@dataclass(frozen=True, slots=True, kw_only=True)
class Switches(JsonRecord):
    """The switches in the environment. Raises ConfigError for a value that is neither on nor off."""

    disable_graphs: bool = option(
        False,
        "Walk the network at every step instead of replaying it "
        "(FERRUM_DISABLE_GRAPHS=1, or its alias FERRUM_DISABLE_CUDA_RUNNER=1).",
    )
    log_tokens: bool = option(
        False, "Log backend, position and the top 5 ids and logits of each step (FERRUM_LOG_TOKENS=1)."
    )

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Switches:
        """Read the switches, and warn once of unknown FERRUM_ variables, which may be misspelt.

        Raises:
            ConfigError: a value is neither on nor off, or FERRUM_PAGED_KV=0: the only KV store is paged.
        """
        for name in environment:
            if name.startswith(ENVIRONMENT_PREFIX) and name.removeprefix(ENVIRONMENT_PREFIX) not in _KNOWN:
                known = ", ".join(ENVIRONMENT_PREFIX + each for each in _KNOWN)
                warn_once(f"{name} in the environment has no effect; known variables: {known}")
        if not _switch(environment, "PAGED_KV", default=True):
            raise ConfigError("cannot be 0: the only KV store is paged; unset it", param="FERRUM_PAGED_KV")
        return cls(
            disable_graphs=_switch(environment, "DISABLE_GRAPHS") or _switch(environment, "DISABLE_CUDA_RUNNER"),
            log_tokens=_switch(environment, "LOG_TOKENS"),
        )


def visible_devices(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the variable that hides devices from CUDA, for messages; None if it is not set."""
    return environment.get("CUDA_VISIBLE_DEVICES")


def api_key_variable(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the server's API key from FERRUM_API_KEY. It is no option, since options are logged and reported."""
    return environment.get(ENVIRONMENT_PREFIX + _API_KEY)


def torchrun_variables(environment: Mapping[str, str] = os.environ) -> Mapping[str, str]:
    """Return the environment, for `core/ranks.py`."""
    return environment


def awaited_ranks(environment: Mapping[str, str] = os.environ) -> int:
    """Return how many ranks of torchrun wait for the model that this process or its engine loads; 0: none."""
    return int(environment.get(ENVIRONMENT_PREFIX + _RANKS, "0"))


def await_ranks(count: int) -> None:
    """Say to this process and its children that ranks wait."""
    os.environ[ENVIRONMENT_PREFIX + _RANKS] = str(count)


def child_environment(changes: Mapping[str, str | None], environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment for another process: this one with changes, where None removes a variable."""
    return {name: value for name, value in {**environment, **changes}.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheVariables:
    """The folders of models that the environment names; None for a variable that is unset or empty.

    Attributes:
        models_dir: FERRUM_MODELS_DIR, the default of the option `models_dir`.
        llama_cache, ollama_models: LLAMA_CACHE of llama.cpp and OLLAMA_MODELS of ollama.
        xdg_cache_home: XDG_CACHE_HOME, the folder of caches of all programs.
    """

    models_dir: str | None
    llama_cache: str | None
    ollama_models: str | None
    xdg_cache_home: str | None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> CacheVariables:
        """Read the variables."""
        return cls(
            models_dir=environment.get(ENVIRONMENT_PREFIX + _MODELS_DIR) or None,
            llama_cache=environment.get("LLAMA_CACHE") or None,
            ollama_models=environment.get("OLLAMA_MODELS") or None,
            xdg_cache_home=environment.get("XDG_CACHE_HOME") or None,
        )


def _switch(environment: Mapping[str, str], name: str, *, default: bool = False) -> bool:
    variable = ENVIRONMENT_PREFIX + name
    text = environment.get(variable, "1" if default else "0").lower()
    if text not in _TRUE + _FALSE:
        raise ConfigError(f"must be 1 or 0, not {text!r}", param=variable)
    return text in _TRUE


MAX_RUN_AHEAD: Final = 4
"""Maximum steps in flight at a submit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig(JsonRecord):
    """The options of loading a model.

    Raises:
        ConfigError: an invalid value; `param` names the field.
        Unsupported: a device that ferrum has no kernels for.
    """

    model: str = field(metadata=about("Directory, GGUF file or hub id of the model."))
    device: str = option("cpu", "Device to compute on: cpu, cuda for the first GPU, cuda:1 for the second.")
    dtype: str = option("auto", "Format of the weights; auto takes the checkpoint's.", DTYPES)
    quantize: str | None = option(
        None,
        "Quantise the matrices on load, to about 8.5, 6.6, 4.9 or 4.5 bits; int8 is q8_0, int4 is q4_k_m.",
        QUANTIZATIONS,
    )
    kv_dtype: str = option(
        "auto", "Format of keys and values; auto takes bfloat16 with bfloat16 weights, else float32.", KV_DTYPES
    )
    kernels: str = option("auto", "Kernels to compute with; auto takes the fastest available on the device.", KERNELS)
    isa: str = option("auto", "Instruction tier of the native kernels; auto takes this machine's best.", ISAS)
    threads: int | None = option(
        None,
        f"Threads for native kernels, 1-{MAX_THREADS} (default: all available CPUs).",
        least=1,
        most=MAX_THREADS,
    )
    tensor_parallel_size: int = option(
        1,
        f"Processes that each compute a part of the outputs of every matrix, 1-{MAX_RANKS}; no answer changes. "
        "--threads is for each of them (default: the available CPUs, divided by their number).",
        least=1,
        most=MAX_RANKS,
        short="tp",
    )
    max_batch_size: int | None = option(
        None,
        f"Maximum sequences in one step (default: {USUAL_BATCH}; fewer run where the KV pool or the step time allows "
        "fewer).",
        least=1,
        most=MAX_BATCH_SIZE,
    )
    max_sequence_length: int | None = option(
        None, "Maximum tokens of a sequence (default: the model's context).", least=1
    )
    models_dir: str | None = option(
        None, "Folder of GGUF files and model directories, whose names are model names (default: FERRUM_MODELS_DIR)."
    )
    mmproj: str | None = option(
        None,
        "File of a GGUF model's tower for images (mmproj-*.gguf), or none to load no tower (default: the file next to "
        "the model or in its repository).",
    )
    kv_capacity: int | None = option(
        None, "Tokens that the KV pool holds (default: sized to the available memory).", least=1
    )
    cuda_graphs: bool = option(
        True, "Run a step on a GPU as one graph. Off launches its kernels one by one; no answer changes."
    )
    switches: Switches = field(default_factory=Switches, metadata=about("Switches from the environment."))

    def __post_init__(self) -> None:
        if not isinstance(self.switches, Switches):
            raise ConfigError(f"must be Switches, not {shown(self.switches)}", param="switches")
        check_quantization(self.quantize)
        check_options(self)
        check_device(self.device, self.kernels, self.isa, self.threads, cuda_graphs=self.cuda_graphs)

    @property
    def max_sequences(self) -> int:
        """The limit of sequences in one step, given or default."""
        return self.max_batch_size or USUAL_BATCH

    @property
    def full_sequences(self) -> int:
        """Sequences of full length that the KV pool is sized for."""
        return self.max_batch_size or FULL_SEQUENCES


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig(JsonRecord):
    """The options of serving a model: the root of the tree. Raises ConfigError; `param` names the field."""

    model: ModelConfig = field(metadata=about("The model to serve."))
    policy: str = option("fcfs", "Scheduling policy: which waiting request runs next.", POLICIES)
    max_tokens_per_step: int = option(USUAL_STEP, "Maximum tokens in one step, over all sequences.", least=1)
    decode_seconds: float = option(
        0.5,
        "Target time for a step that decodes, in seconds. Prompt chunks are sized to fit; prefill gets at least half "
        "a step. 0 disables the limit.",
        least=0.0,
    )
    run_ahead: int = option(
        0,
        "Steps that may be in flight when the next one is planned; no answer changes. 0 is fastest for a single user.",
        least=0,
        most=MAX_RUN_AHEAD,
    )
    host: str = option("thread", "Run the engine in a thread or in a process.", HOSTS)
    replicas: int = option(
        1,
        "Engine processes that share the requests. Those of one that ends go on in the others.",
        least=1,
        most=MAX_REPLICAS,
    )
    stall_seconds: float = option(
        STALL_SECONDS,
        "Seconds without a report after which one of several engines that has requests counts as dead.",
        least=1.0,
    )
    max_queue: int = option(1024, "Maximum requests in progress, waiting or running; more are refused.", least=1)
    prefix_cache: bool = option(True, "Reuse the computed pages of prompts that begin with the same tokens.")
    speculative: str | None = option(
        None,
        "Propose draft tokens and verify several in one step; no answer changes. ngram finds drafts in the text so "
        "far; a directory or hub id names a smaller model with the same vocabulary.",
    )
    num_speculative_tokens: int = option(
        USUAL_DRAFT,
        f"Maximum draft tokens of a sequence in one step, 1-{MAX_DRAFT}.",
        least=1,
        most=MAX_DRAFT,
        needs="speculative",
    )
    prefix_cache_dir: str | None = option(None, "Directory for a persistent prefix cache (default: memory only).")
    prefix_cache_gib: int = option(16, "Maximum size of that directory, in GiB.", least=1, needs="prefix_cache_dir")
    swap_gib: int = option(0, "Host memory for evicted pages, in GiB. 0 recomputes evicted pages instead.", least=0)
    record_dir: str | None = option(
        None,
        "Directory for records of requests, prompts included, for `ferrum replay` (default: no records).",
        flag="record",
    )
    record_gib: int = option(
        1, "Maximum size of all records, in GiB; the oldest are deleted first.", least=1, needs="record_dir"
    )
    lora: tuple[str, ...] = option(
        (),
        'Adapter to load at the start: NAME=PATH, or {"name": NAME, "path": PATH}. Repeat it for several.',
    )
    lora_gib: float = option(
        1.0,
        "Memory for adapters, in GiB. The least recently used ones are read again when a request needs them. "
        "With --lora, the KV pool leaves room for it.",
        least=0.0,
    )
    image_cache_gib: float = option(
        0.25,
        "Memory for the rows that images become, in GiB. The least recently used ones are computed again when a "
        "request shows their image. With a model that reads images, the KV pool leaves room for it.",
        least=0.0,
    )
    tokenizer: str | None = option(
        None,
        "Directory or hub id whose tokenizer, chat template, ends and recommended sampling are used "
        "(default: the model's own).",
    )
    tool_format: str | None = option(
        None,
        "Format in which the model writes reasoning and tool calls: a name, or a JSON file "
        "(default: found by the tokenizer and the chat template; `ferrum formats MODEL` shows it).",
    )
    generation_config: str = option(
        "auto", "Sampling defaults: auto takes the checkpoint's, none takes none.", GENERATION_CONFIGS
    )

    def __post_init__(self) -> None:
        if not isinstance(self.model, ModelConfig):
            raise ConfigError(f"must be a ModelConfig, not {shown(self.model)}", param="model")
        object.__setattr__(self, "lora", named_adapters(self.lora))
        check_options(self)
        if self.stall_seconds != STALL_SECONDS and self.replicas == 1:
            raise ConfigError("requires several engines: set replicas", param="stall_seconds")
        for name in ("prefix_cache_dir", "swap_gib"):
            if getattr(self, name) and not self.prefix_cache:
                raise ConfigError("needs the prefix cache, which is off: enable prefix_cache", param=name)
        if self.max_tokens_per_step < (self.model.max_batch_size or 0):
            raise ConfigError(
                f"{self.max_tokens_per_step} is less than max_batch_size = {self.model.max_batch_size}",
                param="max_tokens_per_step",
            )

    @property
    def adapter_bytes(self) -> int:
        """Limit of the adapters in memory."""
        return int(self.lora_gib * (1 << 30))

    @property
    def image_bytes(self) -> int:
        """Limit of the rows of images in memory."""
        return int(self.image_cache_gib * (1 << 30))

    @property
    def reserved_bytes(self) -> int:
        """Memory that the KV pool leaves to adapters."""
        return self.adapter_bytes if self.lora else 0

    @property
    def max_sequences(self) -> int:
        """The limit of sequences in one step: that of the model, at most one per token of the step."""
        return min(self.model.max_sequences, self.max_tokens_per_step)


def with_wide_steps(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return flat options with `max_tokens_per_step` raised to the batch size, for commands without that option."""
    return {"max_tokens_per_step": max(USUAL_STEP, options.get("max_batch_size") or 0), **options}
