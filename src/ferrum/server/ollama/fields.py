"""The bodies of Ollama's API: their fields, and those that are refused or have no effect."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Final, Literal, TypeAlias

from pydantic import Field

from ferrum.client.model_client import ModelClient
from ferrum.server.chat.forms import FUNCTION, form, tool_list
from ferrum.server.chat.sampling_fields import sampled
from ferrum.server.common.field_rules import Integer, Items, Rule, isnt, one_of, rule
from ferrum.server.common.json_bodies import Body, GeneratingBody, optional
from ferrum.server.common.served_model import read_variables

UNLIMITED: Final = -2
"""The least `num_predict`: Ollama's word for filling the context; -1 and 0 have no limit either."""

Effort: TypeAlias = Literal["low", "medium", "high", "max"]
Context: TypeAlias = Annotated[int, Integer(0)]
KeepAlive: TypeAlias = str | int | float

_ONE_MODEL: Final = "the model stays loaded"
_NO_CUT: Final = "prompts are never cut"
_LOGPROBS: Final = "use /v1/chat/completions or /v1/completions for log-probabilities"
_CONTEXT: Final[Any] = optional("Context that the client needs; above the server's: 400.")
_KEEP_ALIVE: Final[Any] = optional(f"No effect: {_ONE_MODEL}.")
_MODEL: Final[Any] = optional("A name from /api/tags, with or without `:latest` (default: the served model).")
_HARDWARE: Final = ("num_gpu", "main_gpu", "num_thread", "num_batch", "numa", "low_vram", "use_mmap", "use_mlock")

_FUNCTION: Final = form({name: each for name, each in FUNCTION.items() if name != "strict"}, "name")
_TOOLS: Final = tool_list(form({"type": {"const": "function"}, "function": _FUNCTION}, "function"))


@sampled({"repetition_penalty": "repeat_penalty", "max_tokens": "num_predict"}, more=("stop",), terse=True)
class Options(Body):
    """The field `options`: limits and sampling. Others are named in `x-ferrum-ignored`."""

    NO_OPS = MappingProxyType(
        {
            **dict.fromkeys(_HARDWARE, "set when the server starts"),
            "f16_kv": "set when the server starts",
            "vocab_only": "the model is loaded whole",
            "num_keep": _NO_CUT,
            "repeat_last_n": "penalties see all tokens",
            "penalize_newline": "penalties see all tokens",
            **dict.fromkeys(("tfs_z", "typical_p", "mirostat", "mirostat_tau", "mirostat_eta"), "no such sampler"),
        }
    )

    num_ctx: Context | None = _CONTEXT
    num_predict: Annotated[int, Integer(UNLIMITED)] | None = optional(
        "Limit of generated tokens (default, and 0 or less: the rest of the context)."
    )


class EmbedOptions(Body):
    """The field `options` of embeddings, which are not sampled."""

    num_ctx: Context | None = _CONTEXT


class OllamaBody(GeneratingBody):
    """The fields of chats and completions. Replies are streams unless `stream` is false."""

    LONG = ("format", "tools")
    READ = True
    NO_OPS = MappingProxyType({"keep_alive": _ONE_MODEL, "truncate": _NO_CUT, "shift": "the context is never shifted"})
    REFUSED = MappingProxyType({"logprobs": _LOGPROBS, "top_logprobs": _LOGPROBS})
    FOR_TEMPLATE = frozenset({"think"})

    model: str | None = _MODEL
    stream: bool | None = optional("Send the reply as lines of JSON (default: true).")
    format: str | dict[str, Any] | None = Field(
        default=None,
        description="`json` or a JSON Schema for the text of the reply.",
        json_schema_extra={"anyOf": [{"enum": ["", "json", None]}, {"type": "object"}]},
    )
    options: Options | None = None
    think: bool | Effort | None = optional("Think before the answer; for templates that have a switch.")
    keep_alive: KeepAlive | None = _KEEP_ALIVE

    @property
    def streamed(self) -> bool:
        return self.stream is not False

    def think_variables(self, client: ModelClient) -> dict[str, Any]:
        """Return the template variables for `think` that the model's template reads."""
        if self.think is None:
            return {}
        variables: dict[str, Any] = {"enable_thinking": self.think is not False}
        if self.think is not True:
            variables["reasoning_effort"] = self.think or "none"
        return read_variables(client, variables)

    def unread_fields(self, client: ModelClient) -> list[str]:
        return ["think"] if self.think is not None and not self.think_variables(client) else []

    def takes_long(self, client: ModelClient) -> bool:
        breakers = self.options is not None and self.options.given().get("dry_multiplier")
        return bool(breakers) or super().takes_long(client)


class ChatMessage(Body):
    """One message of a conversation."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    images: Items[str] | None = optional("Images in base64, which come before the text.")
    thinking: str | None = optional("The assistant's reasoning.")
    tool_calls: Items[ToolCall] | None = optional("The assistant's calls.")
    tool_name: str | None = optional("The tool whose result this is.")
    tool_call_id: str | None = optional("The call whose result this is.")


class CalledFunction(Body):
    """The function of a call in a history."""

    NO_OPS = MappingProxyType({"index": "calls are in order", "description": "it is in `tools`"})

    name: str
    arguments: dict[str, Any] | None = None


class ToolCall(Body):
    """A call in a history."""

    NO_OPS = MappingProxyType({"type": "calls are of functions"})

    id: str | None = None
    function: CalledFunction


class OllamaChatRequest(OllamaBody):
    """The body of /api/chat."""

    messages: Items[ChatMessage] | None = optional("The conversation; without one the model is only looked up.")
    tools: Items[dict[str, Any]] | None = Field(
        default=None, description="Functions that the model may call.", json_schema_extra=_TOOLS
    )

    def has_images(self) -> bool:
        return any(message.images for message in self.messages or ())


class GenerateRequest(OllamaBody):
    """The body of /api/generate."""

    RULES: ClassVar[Sequence[Rule]] = (
        rule("system", "cannot be combined with raw", one_of("system", None, ""), isnt("raw", True)),
        rule("system", "cannot be combined with suffix", one_of("system", None, ""), one_of("suffix", None, "")),
        rule("images", "cannot be combined with raw", one_of("images", None, []), isnt("raw", True)),
        rule("images", "cannot be combined with suffix", one_of("images", None, []), one_of("suffix", None, "")),
    )
    REFUSED = MappingProxyType(
        {
            **OllamaBody.REFUSED,
            "context": "send the conversation to /api/chat, which finds it in the prefix cache",
            "template": "Ollama's templates are not read; set --chat-template, or send raw = true",
        }
    )

    prompt: str | None = optional("The prompt; without one the model is only looked up.")
    suffix: str | None = optional("Text after the completion, for models trained to fill in the middle; empty: none.")
    system: str | None = optional("The system message.")
    raw: bool | None = optional("Use the prompt as it is, without the chat template.")
    images: Items[str] | None = optional("Images in base64, which come before the prompt.")

    def has_images(self) -> bool:
        return bool(self.images)


class EmbedRequest(Body):
    """The body of /api/embed."""

    NO_OPS = MappingProxyType({"keep_alive": _ONE_MODEL})

    model: str | None = _MODEL
    input: str | Items[str] = Field(description="A text or several.", json_schema_extra={"minItems": 1})
    truncate: bool | None = optional("Cut inputs to the context at their end (default: true).")
    dimensions: Annotated[int, Integer(0)] | None = optional("Must be those of the model; 0: not asked for.")
    options: EmbedOptions | None = None
    keep_alive: KeepAlive | None = _KEEP_ALIVE


class EmbeddingsRequest(Body):
    """The body of /api/embeddings, the older form of /api/embed."""

    NO_OPS = MappingProxyType({"keep_alive": _ONE_MODEL})

    model: str | None = _MODEL
    prompt: str
    options: EmbedOptions | None = None
    keep_alive: KeepAlive | None = _KEEP_ALIVE


class ShowRequest(Body):
    """The body of /api/show."""

    NO_OPS = MappingProxyType({"verbose": "all that is known is sent"})
    REFUSED = MappingProxyType({"system": "models are not changed", "template": "models are not changed"})

    model: str | None = _MODEL
    name: str | None = optional("Older name of `model`.")


for _body in (ChatMessage, OllamaChatRequest):
    _body.model_rebuild()
