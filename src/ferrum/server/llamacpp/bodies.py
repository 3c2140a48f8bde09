"""The body and the replies of /infill."""

from __future__ import annotations

from types import MappingProxyType
from typing import Annotated, Final, Literal, TypeAlias

from ferrum.server.chat.sampling_fields import sampled
from ferrum.server.common.field_rules import Integer, Items
from ferrum.server.common.json_bodies import Body, GeneratingBody, Reply, optional

_NO_SAMPLER: Final = "there is no such sampler"
_NEVER_CUT: Final = "prompts are never cut"
_OTHER_ROUTE: Final = "use /v1/completions with `suffix`"
_DEFAULT_BUDGET: Final = "the limit is n_predict"


class ExtraText(Body):
    """A file that precedes the text."""

    filename: str | None = optional("The name of the file.")
    text: str


@sampled({"repetition_penalty": "repeat_penalty", "max_tokens": "n_predict"}, more=("stop", "ignore_eos"), terse=True)
class InfillRequest(GeneratingBody):
    """The body of /infill."""

    NO_OPS = MappingProxyType(
        {
            **dict.fromkeys(
                ("typical_p", "dynatemp_range", "dynatemp_exponent", "xtc_probability", "xtc_threshold"), _NO_SAMPLER
            ),
            **dict.fromkeys(("mirostat", "mirostat_tau", "mirostat_eta", "samplers", "min_keep"), _NO_SAMPLER),
            "repeat_last_n": "penalties see all tokens",
            "n_keep": _NEVER_CUT,
            "cache_prompt": "prefixes are always cached",
            "n_cache_reuse": "only prefixes are reused",
            "id_slot": "requests have no slots",
            "n_indent": "indentation is not changed",
            "t_max_prompt_ms": _DEFAULT_BUDGET,
            "t_max_predict_ms": _DEFAULT_BUDGET,
            "timings_per_token": "timings are not sent",
            "return_progress": "progress is not sent",
            "sse_ping_interval": "set when the server starts",
            "response_fields": "all fields are sent",
        }
    )
    REFUSED = MappingProxyType(
        {
            **dict.fromkeys(("n_probs", "post_sampling_probs"), f"for log-probabilities {_OTHER_ROUTE}"),
            **dict.fromkeys(("grammar", "json_schema"), f"for constraints {_OTHER_ROUTE}"),
            "logit_bias": f"for biases {_OTHER_ROUTE}",
            "n_cmpl": f"for several choices {_OTHER_ROUTE}",
            "lora": "adapters are not supported",
        }
    )

    input_prefix: str | None = optional("The text before the gap.")
    input_suffix: str | None = optional("The text after the gap.")
    input_extra: Items[ExtraText] | None = optional("Files that precede the text.")
    prompt: str | None = optional("The begin of the text in the gap.")
    n_predict: Annotated[int, Integer(-1)] | None = optional(
        "Limit of generated tokens (default, and -1: the rest of the context)."
    )
    return_tokens: bool | None = optional("Send the token ids.")


StopType: TypeAlias = Literal["eos", "limit", "word"]
"""Why a reply ended."""


class InfillReply(Reply):
    """The reply, or a piece of it: `stop` is true in the last one, which has the counts."""

    index: Literal[0]
    content: str
    tokens: list[int]
    stop: bool
    id_slot: Literal[-1]
    tokens_predicted: int
    tokens_evaluated: int
    model: str | None = None
    stop_type: StopType | None = None
    stopping_word: str | None = None
    truncated: bool | None = None
    tokens_cached: int | None = None


class ErrorBody(Reply):
    """Fields of an error; `code` is its status."""

    code: int
    message: str
    type: str


class ErrorReply(Reply):
    """The reply of every failed request."""

    error: ErrorBody
