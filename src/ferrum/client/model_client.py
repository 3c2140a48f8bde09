"""`ModelClient`: one started engine with the tokenizer, chat template and sampling defaults of its model.

How requests are queued is in `router`, how they are checked in `input_processor`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

from ferrum.client.adapter_registry import AdapterRegistry
from ferrum.client.input_processor import InputProcessor, no_images
from ferrum.client.output_stream import RequestStream
from ferrum.client.records.recorder import Recorder
from ferrum.client.router import DEFAULT_MAX_REQUESTS, Router, wake_here
from ferrum.core.config import EngineConfig
from ferrum.core.errors import CheckpointError, RequestError, Unsupported
from ferrum.core.output_format import OutputFormat
from ferrum.core.params import over_recommended
from ferrum.core.types import Pooling, Request
from ferrum.engine.host import Host
from ferrum.engine.messages import EngineInfo
from ferrum.formats.writing import write_output
from ferrum.text.chat_template import ChatTemplate
from ferrum.text.generation_config import GenerationConfig
from ferrum.text.model_files import ModelFiles
from ferrum.text.reranker import Reranker
from ferrum.text.template_messages import has_calls, refuse_lost_texts
from ferrum.text.template_turns import text_of
from ferrum.text.tokenizer import Tokenizer
from ferrum.text.turn_openers import turn_openers

if TYPE_CHECKING:
    from ferrum.client.records.resumption import Resumption
    from ferrum.formats.find import FoundFormat
    from ferrum.images.image_processor import ImageProcessor


Message: TypeAlias = Mapping[str, Any]
"""An object with `role`, `content` and further fields of the model's template."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts of a client.

    Attributes:
        host: runs the engine; not started yet.
        tokenizer: None serves token ids only.
        generation: the checkpoint's end tokens and recommended sampling.
        chat_template: None if the model has none.
        special_tokens: variables for a template that the caller sends.
        max_requests: limit of requests that wait or run.
        config: the options of the model and the engine; None if there were none.
        recorder: makes the recorder of requests; None: requests are not recorded.
        files: the model's small files, for the description of its output format; None if it has none.
        pooling: returns how hidden states become an embedding. Raises CheckpointError, Unsupported.
        embeds: the model's files say how it embeds texts.
        reranker: returns how the model scores documents; None if its files do not say. Raises as `pooling`.
        images: returns what the model makes of images. Raises Unsupported, CheckpointError.
    """

    host: Host
    tokenizer: Tokenizer | None = None
    generation: GenerationConfig = field(default_factory=GenerationConfig)
    chat_template: ChatTemplate | None = None
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    max_requests: int = DEFAULT_MAX_REQUESTS
    config: EngineConfig | None = None
    recorder: Callable[[EngineInfo], Recorder] | None = None
    files: ModelFiles | None = None
    pooling: Callable[[], Pooling] = lambda: Pooling.MEAN
    embeds: bool = False
    reranker: Callable[[], Reranker | None] = lambda: None
    images: Callable[[], ImageProcessor] = no_images


class ModelClient:
    """A started engine and what belongs to its model on the client's side. Safe to use from any thread.

    Attributes:
        info: what the engine serves, and how.
        name: of the model in errors.
        adapters: the loaded adapters by name.
        router: the queue of requests to the engine.
        input_processor: makes requests from prompts and parameters.
        config: the options; None if there were none.
        tokenizer: None if only token ids are served.
        recommended: the checkpoint's sampling parameters by name; empty if switched off.
        default_params: `recommended` over the defaults of `SamplingParams`.
        chat_template: the model's; None if it has none.
        pooling, embeds, reranker, max_requests: see `Parts`.

    Args:
        parts: the host in it is started here.
        wake_all: see `Router`.

    Raises:
        FerrumError: the engine could not be built.
    """

    def __init__(self, parts: Parts, wake_all: Callable[[Sequence[RequestStream]], None] = wake_here) -> None:
        self.config = parts.config
        self.tokenizer = parts.tokenizer
        self.recommended = parts.generation.sampling
        self.default_params = over_recommended(self.recommended, {})
        self.chat_template = parts.chat_template
        self.pooling = parts.pooling
        self.embeds = parts.embeds
        self.reranker = parts.reranker
        self.max_requests = parts.max_requests
        self._special_tokens = parts.special_tokens
        self._files = parts.files
        self._format: FoundFormat | None = None
        self._openers: frozenset[int] | None = None  # unknown until the first request
        self.router = Router(parts.host, max_requests=parts.max_requests, wake_all=wake_all)
        self.info = self.router.info
        self.name = self.info.model
        self.adapters = AdapterRegistry(self.router)
        if parts.recorder is not None:
            self.router.recorder = parts.recorder(self.info)
        plan = self.info.memory
        self.input_processor = InputProcessor(
            vocab_size=self.info.vocab_size,
            max_sequence_length=self.info.max_sequence_length,
            tokenizer=parts.tokenizer,
            eos_token_ids=parts.generation.eos_token_ids,
            prioritised=parts.config is not None and parts.config.policy == "priority",
            images=parts.images,
            turn_openers=self._turn_openers if plan is not None and plan.states is not None else frozenset,
        )

    def _turn_openers(self) -> frozenset[int]:
        """Return the tokens that begin messages, if the model has a chat template; only states need them."""
        if self.chat_template is None or self.tokenizer is None:
            return frozenset()
        if self._openers is None:
            self._openers = turn_openers(self.chat_template, self.tokenizer)
        return self._openers

    def use_template(self, source: str, origin: str) -> None:
        """Replace the model's chat template; `origin` names its file in errors."""
        self._files, self._format, self._openers = (
            None,
            None,
            None,
        )  # they describe what the model's own template writes
        self.chat_template = ChatTemplate(source, self._special_tokens, origin=origin)

    @cached_property
    def reads_images(self) -> bool:
        """Whether the model reads images in conversations."""
        if self.chat_template is None or self.tokenizer is None:
            return False
        try:
            self.input_processor.image_processor  # noqa: B018 - it is read from files here
        except (Unsupported, CheckpointError):
            return False
        return True

    @property
    def recorder(self) -> Recorder | None:
        """The recorder of requests; None if they are not recorded."""
        return self.router.recorder

    def resumed(self, resumption: Resumption) -> Request:
        """Return the request of a resumption, for this engine. Raises RecordMismatch if it would compute other bits."""
        from ferrum.client.records.resumption import resumed_request  # few clients need it

        digest = None if self.recorder is None else self.recorder.origin().digest
        return resumed_request(resumption, self.info, digest, [each.facts.digest for each in self.adapters])

    def render(
        self,
        messages: Sequence[Message],
        *,
        chat_template: str | None = None,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        untrusted: bool = False,
    ) -> str:
        """Render a conversation as text, special tokens included.

        Args:
            messages: at least one.
            chat_template: replaces the model's.
            add_generation_prompt: begin the assistant's message; default: unless the last message is continued.
            continue_final_message: continue the last message instead of answering it.
            tools: descriptions for the template.
            chat_template_kwargs: further variables for the template.
            untrusted: render `chat_template` in the sandbox of untrusted templates.

        Raises:
            RequestError: there is no tokenizer or template, or the template refuses the messages.
            Unsupported: a message has content other than text.
        """
        for name, value, kind, wanted in (
            ("chat_template", chat_template, str, "text"),
            ("tools", tools, Sequence, "a list of objects"),
            ("chat_template_kwargs", chat_template_kwargs, Mapping, "an object"),
        ):
            if value is not None and not isinstance(value, kind):
                raise RequestError(f"must be {wanted}, not {type(value).__name__}", param=name)
        if self.tokenizer is None:
            raise RequestError("the model has no tokenizer; send token ids to a completion", param="messages")
        template = self.chat_template
        if chat_template is not None:
            template = _given_template(chat_template, self._special_tokens, untrusted=untrusted)
        if template is None:
            raise RequestError("the model has none; send one, or use a plain prompt", param="chat_template")

        def rendered(messages: Sequence[Message]) -> str:
            chat = template.prepare(messages)
            if has_calls(messages) and not template.writes_calls:
                chat = with_written_calls(chat, self.output_format(chat_template, untrusted=untrusted).format)
            return template.render(
                chat,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                tools=tools,
                template_kwargs=chat_template_kwargs,
            )

        text = rendered(messages)
        if chat_template is None:  # a client that sends a template decides what it writes
            refuse_lost_texts(messages, text, rendered)
        return text

    def output_format(self, chat_template: str | None = None, *, untrusted: bool = False) -> FoundFormat:
        """Return how the model writes reasoning and calls, found at the first use of each template.

        Args:
            chat_template, untrusted: see `render`.

        Raises:
            RequestError: the format that the options name cannot be used.
        """
        from ferrum.formats.find import find_format  # only chats need it

        chosen = None if self.config is None else self.config.tool_format
        if chat_template is not None:
            return find_format(_given_template(chat_template, self._special_tokens, untrusted=untrusted), None, chosen)
        assert self.chat_template is not None, "`render` refuses conversations without one"
        if self._format is None:
            self._format = find_format(self.chat_template, self._files, chosen)
        return self._format

    @property
    def knows_format(self) -> bool:
        """Whether the format of the model's own template is found already; finding it takes a part of a second."""
        return self._format is not None


def _given_template(source: str, special_tokens: Mapping[str, str], *, untrusted: bool) -> ChatTemplate:
    if not untrusted:
        return ChatTemplate(source, special_tokens)
    from ferrum.text.untrusted_template import UntrustedTemplate  # slow to import: it starts processes

    return UntrustedTemplate(source, special_tokens)


# ---- Calls as text of a message, for chat templates that write none: what the model wrote when it called ----


def with_written_calls(chat: Sequence[dict[str, Any]], format: OutputFormat | None) -> list[dict[str, Any]]:
    """Return messages whose calls are part of their text.

    Args:
        chat: as `ChatTemplate.prepare` returns it.
        format: of the model. Without one for calls, a call is a line of JSON.
    """
    return [_written(message, format) if message.get("tool_calls") else message for message in chat]


def _written(message: dict[str, Any], format: OutputFormat | None) -> dict[str, Any]:
    said = text_of(message.get("content")) or None
    calls = [(call["function"]["name"], _arguments(call["function"]["arguments"])) for call in message["tool_calls"]]
    if format is None or format.calls is None:
        lines = [json.dumps({"name": name, "arguments": given}, ensure_ascii=False) for name, given in calls]
        content = "\n".join([*([said] if said else ()), *lines])
    else:
        content = write_output(format, content=said, calls=calls)
    return {**{name: value for name, value in message.items() if name != "tool_calls"}, "content": content}


def _arguments(given: Any) -> dict[str, Any]:
    arguments: dict[str, Any] = json.loads(given) if isinstance(given, str) else given
    return arguments
