"""What both clients stand on: one engine with the model's tokenizer, chat template and recommended parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ferrum.core.config import EngineConfig
from ferrum.core.errors import RequestError
from ferrum.core.types import Pooling
from ferrum.engine.hosts.host import Host
from ferrum.engine.input_processor import Admission
from ferrum.engine.messages import EngineInfo
from ferrum.engine.output_stream import RequestStream
from ferrum.engine.records.recorder import Recorder
from ferrum.engine.router import DEFAULT_MAX_REQUESTS, Router, wake_here
from ferrum.text.chat_messages import for_template
from ferrum.text.chat_template import ChatTemplate
from ferrum.text.generation_config import GenerationConfig, over_recommended
from ferrum.text.tokenizer import Tokenizer

Message: TypeAlias = Mapping[str, Any]
"""`role`, `content` and what else the model's template knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a client is put together from.

    Attributes:
        host: where the engine lives; not started yet.
        tokenizer: None serves token ids alone.
        generation: the checkpoint's end tokens and recommended sampling.
        chat_template: None where the model has none.
        special_tokens: variables for a template that the caller brings.
        max_requests: how many requests may be waiting and running.
        config: the options that all this was made from; None where it was not made from options.
        recorder: makes what keeps the requests of the engine; None: they are not kept.
        pooling: tells how the checkpoint's hidden states become an embedding. Raises CheckpointError, Unsupported.
    """

    host: Host
    tokenizer: Tokenizer | None = None
    generation: GenerationConfig = field(default_factory=GenerationConfig)
    chat_template: ChatTemplate | None = None
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    max_requests: int = DEFAULT_MAX_REQUESTS
    config: EngineConfig | None = None
    recorder: Callable[[EngineInfo], Recorder] | None = None
    pooling: Callable[[], Pooling] = lambda: Pooling.MEAN


class Front:
    """A started engine and all that belongs to its model on the client's side. Safe to use from any thread.

    Attributes:
        config: the options, where there were any.
        tokenizer: None where token ids alone are served.
        recommended: the checkpoint's sampling by parameter name, unless switched off; `default_params` are made of it.
        chat_template: the model's own; None where it has none.
        pooling: see `Parts`.

    Args:
        parts: its host is started here.
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
        self._special_tokens = parts.special_tokens
        self.pooling = parts.pooling
        self.router = Router(parts.host, max_requests=parts.max_requests, wake_all=wake_all)
        if parts.recorder is not None:
            self.router.recorder = parts.recorder(self.router.info)
        self.admission = Admission(
            vocab_size=self.router.info.vocab_size,
            max_sequence_length=self.router.info.max_sequence_length,
            tokenizer=parts.tokenizer,
            eos_token_ids=parts.generation.eos_token_ids,
            prioritised=parts.config is not None and parts.config.policy == "priority",
        )

    def render(
        self,
        messages: Sequence[Message],
        *,
        chat_template: str | None = None,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        foreign: bool = False,
    ) -> str:
        """The text of a conversation, special tokens included.

        Args:
            messages: at least one.
            chat_template: a template in place of the model's own.
            add_generation_prompt: begin the assistant's turn; None: unless the final message is continued.
            continue_final_message: go on with the last message instead of answering it.
            tools: described to the template.
            chat_template_kwargs: more variables for the template.
            foreign: the `chat_template` is a stranger's.

        Raises:
            RequestError: no tokenizer or template, or messages that the template refuses.
            Unsupported: a message with content that is no text.
        """
        for name, value, kind, wanted in (
            ("chat_template", chat_template, str, "text"),
            ("tools", tools, Sequence, "a list of objects"),
            ("chat_template_kwargs", chat_template_kwargs, Mapping, "an object"),
        ):
            if value is not None and not isinstance(value, kind):
                raise RequestError(f"must be {wanted}, not {type(value).__name__}", param=name)
        if self.tokenizer is None:
            raise RequestError("the model has no tokenizer; give token ids instead", param="messages")
        template = self.chat_template
        if chat_template is not None:
            template = _given_template(chat_template, self._special_tokens, foreign=foreign)
        if template is None:
            raise RequestError("the model has none; give one, or a plain prompt", param="chat_template")
        return template.render(
            for_template(messages, as_parts=template.reads_parts),
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            tools=tools,
            template_kwargs=chat_template_kwargs,
        )


def _given_template(source: str, special_tokens: Mapping[str, str], *, foreign: bool) -> ChatTemplate:
    if not foreign:
        return ChatTemplate(source, special_tokens)
    from ferrum.text.untrusted_template import ForeignTemplate  # what starts processes takes a while to import

    return ForeignTemplate(source, special_tokens)
