"""The options of the program: one frozen tree, resolved once, complete, and the only place that reads the environment.

Flags and files make an `EngineConfig`; constructors take the values they use, never the tree. Every field tells what it
does in its metadata (`help`), which command lines and documents print.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ferrum.core.errors import ConfigError
from ferrum.core.json_record import JsonRecord
from ferrum.core.logging import warn_once
from ferrum.core.option_fields import about, check_options
from ferrum.core.values import shown

ENVIRONMENT_PREFIX: Final = "FERRUM_"
_SWITCHES: Final = ("DISABLE_GRAPHS", "DISABLE_CUDA_RUNNER", "LOG_TOKENS", "PAGED_KV")
"""Names behind the prefix."""

DTYPES: Final = ("auto", "bfloat16", "float16", "float32")
QUANTIZATIONS: Final = (None, "int8", "int4", "int4-all")
GROUPS: Final = (None, 32, 64, 128)
KV_DTYPES: Final = ("auto", "float32", "bfloat16", "int8")
KERNELS: Final = ("auto", "native", "reference", "cuda")
ISAS: Final = ("auto", "avx512", "avx512_vnni", "avx2_vnni", "avx2", "portable")
DEVICES: Final = ("cpu", "cuda")
POLICIES: Final = ("fcfs", "priority", "fair")
HOSTS: Final = ("thread", "process")
GENERATION_CONFIGS: Final = ("auto", "none")

NGRAM: Final = "ngram"
MAX_DRAFT: Final = 16
"""Longest draft: what a layer with a sliding window keeps to be able to take back."""

USUAL_DRAFT: Final = 8
"""Longest draft where none is asked for."""

PAGE_SIZE: Final = 64
"""Tokens per page where nobody asks for another size: what attention streams at full bandwidth."""

USUAL_STEP: Final = 512
"""Tokens of one step where nobody says how many."""

MAX_THREADS: Final = 1024
"""Largest team: far more threads than processors finish no step."""

_TRUE: Final = frozenset({"1", "true", "yes", "on"})
_FALSE: Final = frozenset({"", "0", "false", "no", "off"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Switches(JsonRecord):
    """What the environment says. Raises ConfigError for a value that is no switch."""

    disable_graphs: bool = field(
        default=False,
        metadata=about(
            "Walk the network at every step instead of replaying it "
            "(FERRUM_DISABLE_GRAPHS=1, or its alias FERRUM_DISABLE_CUDA_RUNNER=1)."
        ),
    )
    log_tokens: bool = field(
        default=False,
        metadata=about("Log backend, position and the top 5 ids and logits of each step (FERRUM_LOG_TOKENS=1)."),
    )

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Switches:
        """Read the switches. Of what else begins as they do the log tells: it may be one of them, misspelt.

        Raises:
            ConfigError: a value that is neither on nor off, or FERRUM_PAGED_KV=0: there is one store, and it is paged.
        """
        for name in environment:
            if name.startswith(ENVIRONMENT_PREFIX) and name.removeprefix(ENVIRONMENT_PREFIX) not in _SWITCHES:
                known = ", ".join(ENVIRONMENT_PREFIX + each for each in _SWITCHES)
                warn_once(f"{name} in the environment is without effect: there are {known}")
        if not _switch(environment, "PAGED_KV", default=True):
            raise ConfigError("there is one KV store and it is paged: remove it", param="FERRUM_PAGED_KV")
        return cls(
            disable_graphs=_switch(environment, "DISABLE_GRAPHS") or _switch(environment, "DISABLE_CUDA_RUNNER"),
            log_tokens=_switch(environment, "LOG_TOKENS"),
        )


def _switch(environment: Mapping[str, str], name: str, *, default: bool = False) -> bool:
    variable = ENVIRONMENT_PREFIX + name
    text = environment.get(variable)
    if text is None:
        return default
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise ConfigError(f"must be 1 or 0, not {text!r}", param=variable)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig(JsonRecord):
    """How a model is loaded. Raises ConfigError, naming the field, for a value that no model could take."""

    model: str = field(metadata=about("Directory or hub id of the model."))
    device: str = field(default="cpu", metadata=about("Where to compute.", DEVICES))
    dtype: str = field(default="auto", metadata=about("Format of the weights; auto: the checkpoint's.", DTYPES))
    quantize: str | None = field(
        default=None,
        metadata=about(
            "Quantise the matrices on load; int4 keeps embedding and head in int8, int4-all does not.",
            QUANTIZATIONS,
        ),
    )
    group: int | None = field(
        default=None,
        metadata=about(
            "Inputs that share a scale of quantised matrices: 128 is the fastest where many tokens are computed at "
            "once, 32 the most exact; none: 32, or what a packed directory has.",
            GROUPS,
        ),
    )
    kv_dtype: str = field(
        default="auto",
        metadata=about("Format of keys and values; auto: float32 with float32 weights, else bfloat16.", KV_DTYPES),
    )
    kernels: str = field(
        default="auto", metadata=about("Kernels to compute with; auto: the fastest there are.", KERNELS)
    )
    isa: str = field(
        default="auto", metadata=about("Instruction tier of the native kernels; auto: this machine's best.", ISAS)
    )
    threads: int | None = field(
        default=None,
        metadata=about(
            f"Most threads of the native kernels, at most {MAX_THREADS}; none: as many as processors allowed.",
            least=1,
            most=MAX_THREADS,
        ),
    )
    max_batch_size: int = field(default=32, metadata=about("Most sequences of one step.", least=1))
    max_sequence_length: int | None = field(
        default=None, metadata=about("Most tokens of a sequence; none: the model's context.", least=1)
    )
    kv_capacity: int | None = field(
        default=None, metadata=about("Tokens that the KV pool holds; none: as memory allows.", least=1)
    )
    switches: Switches = field(default_factory=Switches, metadata=about("What the environment says."))

    def __post_init__(self) -> None:
        if not isinstance(self.switches, Switches):
            raise ConfigError(f"must be Switches, not {shown(self.switches)}", param="switches")
        check_options(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig(JsonRecord):
    """How a model is served: the root of the tree. Raises ConfigError, naming the field."""

    model: ModelConfig = field(metadata=about("The model to serve."))
    policy: str = field(default="fcfs", metadata=about("Who is served first.", POLICIES))
    max_tokens_per_step: int = field(
        default=USUAL_STEP, metadata=about("Most tokens of one step, over all sequences.", least=1)
    )
    decode_seconds: float = field(
        default=0.5,
        metadata=about(
            "Longest step in seconds, as steps are measured, while answers are being written: prompts join in pieces "
            "that keep to it, and get half of a step at least, and sequences wait that would make it longer and bring "
            "nothing; 0: as long as max_tokens_per_step and max_batch_size make it.",
            least=0.0,
        ),
    )
    host: str = field(default="thread", metadata=about("Where the engine runs.", HOSTS))
    max_queue: int = field(default=1024, metadata=about("Most requests that wait or run; more are refused.", least=1))
    prefix_cache: bool = field(
        default=True, metadata=about("Keep what is computed, while there is room, for prompts that begin alike.")
    )
    speculative: str | None = field(
        default=None,
        metadata=about(
            "Guess tokens and verify several in one step, which changes no answer: ngram looks them up in the text so "
            "far, a directory or hub id is a smaller model with the same vocabulary."
        ),
    )
    num_speculative_tokens: int = field(
        default=USUAL_DRAFT,
        metadata=about(
            f"Most guesses for a sequence in one step, at most {MAX_DRAFT}.",
            least=1,
            most=MAX_DRAFT,
            needs="speculative",
        ),
    )
    prefix_cache_dir: str | None = field(
        default=None, metadata=about("Directory where prefixes outlast the engine; none: they do not.")
    )
    prefix_cache_gib: int = field(
        default=16, metadata=about("Most GiB that the directory holds.", least=1, needs="prefix_cache_dir")
    )
    swap_gib: int = field(
        default=0,
        metadata=about("GiB of host buffers for pages that have to make room; 0: they are computed again.", least=0),
    )
    record_dir: str | None = field(
        default=None,
        metadata=about(
            "Directory where requests are kept with all that is needed to run them again, prompts too; none: nowhere.",
            flag="record",
        ),
    )
    record_gib: int = field(
        default=1,
        metadata=about("Most GiB that the records take; the oldest go first.", least=1, needs="record_dir"),
    )
    generation_config: str = field(
        default="auto",
        metadata=about("Sampling defaults: auto takes the checkpoint's, none takes none.", GENERATION_CONFIGS),
    )

    def __post_init__(self) -> None:
        if not isinstance(self.model, ModelConfig):
            raise ConfigError(f"must be a ModelConfig, not {shown(self.model)}", param="model")
        check_options(self)
        if self.prefix_cache_dir is not None and not self.prefix_cache:
            raise ConfigError("needs the prefix cache, which is switched off", param="prefix_cache_dir")
        if self.swap_gib and not self.prefix_cache:
            raise ConfigError("needs the prefix cache, which is switched off", param="swap_gib")
        if self.max_tokens_per_step < self.model.max_batch_size:
            raise ConfigError(
                f"{self.max_tokens_per_step} is less than max_batch_size = {self.model.max_batch_size}",
                param="max_tokens_per_step",
            )


def with_wide_steps(options: Mapping[str, Any]) -> dict[str, Any]:
    """Flat options for commands that have no `max_tokens_per_step`: a batch that is asked for fits into its steps."""
    return {"max_tokens_per_step": max(USUAL_STEP, options.get("max_batch_size", 0)), **options}
