"""What the checks of chats and completions share: from a parsed body to requests that the engine accepts.

Bounds of fields are in `openai.bodies`, ranges of sampling parameters in `core.params`, rules of prompts in the
engine's `InputProcessor`, which is called from here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from ferrum.client.chat_prompt import ChatOptions, ChatPrompt, chat_prompt
from ferrum.client.input_processor import FieldNames, RequestOptions
from ferrum.client.model_client import ModelClient
from ferrum.core.params import ALL_TOKENS, SamplingParams, over_recommended
from ferrum.core.types import Request
from ferrum.server.common.error_replies import invalid
from ferrum.server.common.key_limits import Caller
from ferrum.server.common.lora_scales import of_scales
from ferrum.server.common.reply_builder import PromptNotes
from ferrum.server.common.served_model import ServedModel
from ferrum.server.common.truncation import truncated
from ferrum.server.openai.bodies import ChatRequest, GenerationBody
from ferrum.server.openai.conversation import RenderRequest, TemplateBody, TokenizeRequest

MAX_REPLY_LOGPROBS: Final = 1 << 21
"""Log-probabilities of generated tokens in one reply of several choices; with their JSON they take a gigabyte."""

MAX_CHARACTERS_PER_TOKEN: Final = 64
"""Of the context: a few characters of a client's template may render megabytes of text."""

_SAMPLING: Final = tuple(
    each.name
    for each in fields(SamplingParams)
    if each.name not in ("logprobs", "logprob_token_ids", "structured_outputs")
)


@dataclass(frozen=True, slots=True)
class CheckedRequest:
    """A client's request after validation.

    Attributes:
        requests: for the engine, one per prompt.
        n: choices to return per prompt: the best of those that the requests generate.
        prefixes: the text that every choice begins with, per prompt.
        notes: on the prompt of a chat.
    """

    requests: tuple[Request, ...]
    n: int
    prefixes: tuple[str, ...]
    notes: PromptNotes | None = None


def check_top_tokens(field: str, count: int, limit: int) -> None:
    """Refuse more top tokens of a position than the server's limit. Raises RequestError."""
    if not 0 <= count <= limit:
        raise invalid(field, f"must be 0 to {limit}, not {count}")


def render(client: ModelClient, body: TemplateBody | TokenizeRequest) -> str:
    """Render a body's conversation with the chat template.

    Raises:
        RequestError, Unsupported: the messages or the template cannot be used.
    """
    tools = (body.tools or None) if isinstance(body, RenderRequest | TokenizeRequest) else None
    text = client.render(_messages(body), tools=tools, **_rendering(client, body))
    _check_rendered(client, body, text)
    return text


def rendered_chat(
    client: ModelClient, body: ChatRequest, params: SamplingParams, options: ChatOptions, names: FieldNames
) -> ChatPrompt:
    """Render a chat, and find how its reply is limited and read. Raises as `chat_prompt`."""
    prompt = chat_prompt(client, _messages(body), params, options, names=names, **_rendering(client, body))
    _check_rendered(client, body, prompt.text)
    return prompt


def _messages(body: TemplateBody | TokenizeRequest) -> list[dict[str, Any]]:
    return [message.model_dump(exclude_none=True) for message in body.messages or ()]


def _rendering(client: ModelClient, body: TemplateBody | TokenizeRequest) -> dict[str, Any]:
    """Return the arguments of `ModelClient.render` about the template."""
    effort = {}
    if isinstance(body, TemplateBody) and body.reasoning_effort is not None:
        effort = body.effort_variables(client)
    return {
        "chat_template": body.chat_template,
        "add_generation_prompt": body.add_generation_prompt,
        "continue_final_message": bool(body.continue_final_message),
        "chat_template_kwargs": {**effort, **(body.chat_template_kwargs or {})} or None,
        "untrusted": True,
    }


def _check_rendered(client: ModelClient, body: TemplateBody | TokenizeRequest, text: str) -> None:
    """Refuse a long text of a client's template."""
    limit = MAX_CHARACTERS_PER_TOKEN * client.info.max_sequence_length
    if body.chat_template is not None and len(text) > limit:
        raise invalid("chat_template", f"it renders {len(text)} characters, more than {limit}")


def check_generation(client: ModelClient, body: GenerationBody, caller: Caller) -> None:
    """Check the rules that chats and completions share."""
    asked = body.prompt_logprobs
    if asked is not None and (asked != ALL_TOKENS or client.info.vocab_size > caller.max_logprobs):
        check_top_tokens("prompt_logprobs", asked, caller.max_logprobs)
    if body.priority:
        client.input_processor.check_priority(body.priority)


def several(field: str, given: str | list[int] | list[str] | list[list[int]], limit: int) -> Sequence[str | list[int]]:
    """Return the prompts of a field that holds one or several. An empty text may still get a begin token."""
    prompts: Sequence[Any] = [given] if isinstance(given, str) or not given or isinstance(given[0], int) else given
    if len(prompts) > limit:
        raise invalid(field, f"has {len(prompts)} entries, at most {limit} fit in one request")
    for place, each in enumerate(prompts):
        if not each and not isinstance(each, str):
            raise invalid(f"{field}[{place}]" if len(prompts) > 1 else field, "must not be empty")
    return prompts


def sampling_params(body: GenerationBody, defaults: Mapping[str, Any], given: Mapping[str, Any]) -> SamplingParams:
    """Return the body's parameters over the defaults, and `given` over both."""
    of_body = {name: value for name in _SAMPLING if (value := getattr(body, name)) is not None}
    return over_recommended(defaults, {**of_body, **given})


@dataclass(frozen=True, slots=True)
class Prompts:
    """Makes the engine's requests from the prompts of one body.

    Attributes:
        limit: `max_tokens` as the client gave it, which must fit; a default is cut off at the end of the context.
        special: texts get the special tokens that the model expects around them.
    """

    model: ServedModel
    body: GenerationBody
    caller: Caller
    params: SamplingParams
    limit: int | None
    special: bool

    def request(
        self,
        prompt: str | list[int],
        request_id: str,
        names: FieldNames,
        prediction: str | None = None,
        chat: ChatPrompt | None = None,
    ) -> Request:
        """Return the request for one prompt. Raises as `InputProcessor.process`."""
        adapters = self.model.client.adapters
        return self.model.process(
            prompt if self.body.truncate_prompt_tokens is None else self._truncated(prompt),
            self.params,
            RequestOptions(
                request_id=request_id,
                priority=self.body.priority or 0,
                deadline=self.caller.deadline,
                tenant=self.caller.tenant,
                salt=self.body.cache_salt or "",
                trace_id=self.caller.trace_id,
                add_special_tokens=self.special,
                prediction=prediction,
                context=self.model.context,
                required_output=1 if self.limit is None else self.limit,
                guidance=None if chat is None else chat.guidance,
                reading=None if chat is None else chat.reading,
                names=names,
            ),
            None if self.body.lora is None else of_scales(adapters, self.body.lora),
        )

    def _truncated(self, prompt: str | list[int]) -> str | list[int]:
        """Return the last `truncate_prompt_tokens` of a prompt; -1 keeps what leaves room for the output."""
        keep = self.body.truncate_prompt_tokens
        if keep is None or keep == -1:
            room = 1 if self.params.max_tokens is None else self.params.max_tokens
            # A recommended max_tokens may be as long as the context; it must not displace the prompt.
            keep = self.model.context - (min(room, self.model.context // 2) if self.limit is None else room)
        return truncated(self.model.client.tokenizer, prompt, max(1, keep), special=self.special)

    def text(self, prompt: str | list[int], request: Request) -> str:
        """Return the text of a prompt for `echo`: as given, or decoded from its ids."""
        if isinstance(prompt, str) and self.body.truncate_prompt_tokens is None:
            return prompt
        if self.model.client.tokenizer is None:
            return ""
        return self.model.client.tokenizer.decode(request.prompt, skip_special_tokens=self.params.skip_special_tokens)


def check_reply_size(requests: Sequence[Request], context: int, top_tokens: int, blamed: str) -> None:
    """Refuse several choices that could have too many log-probabilities for one reply; streams hold only a few."""
    if sum(request.params.n for request in requests) == 1:
        return
    count = 0
    for request in requests:
        room = context - len(request.prompt)
        limit = request.params.max_tokens
        count += (1 + top_tokens) * request.params.n * (room if limit is None else min(room, limit))
    if count > MAX_REPLY_LOGPROBS:
        reason = f"the reply may have {count} log-probabilities, at most {MAX_REPLY_LOGPROBS} for several choices"
        raise invalid(blamed, f"{reason}; lower it, or set stream = true")
