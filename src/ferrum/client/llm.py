"""`LLM`: the synchronous client, for scripts, notebooks and batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from ferrum.client.adapter_registry import AdapterChoice, LoRARequest, NamedAdapter
from ferrum.client.beams import Beam, BeamRules, BeamSearch
from ferrum.client.client_base import EngineClient
from ferrum.client.input_processor import Prompt, RequestOptions, check_params, context_overflow, entries_of
from ferrum.client.model_client import Message, ModelClient, Parts
from ferrum.client.offline_batch import Batch, stream
from ferrum.client.request_output import Delta, Logprob, Logprobs, RequestOutput
from ferrum.client.session import Session
from ferrum.core.errors import RequestError
from ferrum.core.params import SamplingParams
from ferrum.core.span_checks import check_kind
from ferrum.core.types import Request
from ferrum.engine.progress import BarFactory, progress_bar

if TYPE_CHECKING:
    from ferrum.client.records.resumption import Resumption
    from ferrum.grammar.reply_guidance import ChatOptions
    from ferrum.images.decoded_image import DecodedImage

Conversation: TypeAlias = Sequence[Message]


class LLM(EngineClient):
    """A model, ready to generate. A context manager; safe to use from several threads.

    Opened as `EngineClient` says.
    """

    def _start(self, parts: Parts) -> ModelClient:
        return ModelClient(parts)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool | BarFactory = True,
        *,
        priority: int = 0,
        deadline: float | None = None,
        lora_request: AdapterChoice | Sequence[AdapterChoice | None] | None = None,
        images: Sequence[Sequence[DecodedImage]] | None = None,
    ) -> list[RequestOutput]:
        """Complete one prompt or several, and return the outputs in order when all have finished.

        All prompts are checked before any runs. A request that fails later does not affect the others: its choices
        have the finish reason `error`.

        Args:
            prompts: one or several texts or lists of token ids.
            sampling_params: for all prompts, or one for each; None: `default_sampling_params`.
            use_tqdm: whether to show a progress bar, or a callable like `tqdm` that creates one.
            priority, deadline: see `RequestOptions`.
            lora_request: an adapter for all prompts, or one or None for each: the name of a loaded one, or a
                `LoRARequest`, which is loaded at first use.
            images: of each prompt, for its placeholders in their order.

        Raises:
            RequestError: an invalid prompt or parameter; `param` names the field.
            EngineDead: the engine has ended.
            FerrumError: an adapter cannot be loaded.
        """
        several = _prompts(prompts)
        every = self._each_params(sampling_params, len(several))
        adapters = self._each_adapter(lora_request, len(several))
        seen: Sequence[Sequence[DecodedImage]] = [()] * len(several) if images is None else images
        if len(seen) != len(several):
            raise RequestError(f"{len(seen)} lists given for {len(several)} prompts", param="images")
        requests = [
            self.client.input_processor.process(
                prompt,
                params,
                RequestOptions(priority=priority, deadline=deadline, adapters=chosen, images=tuple(shown)),
            )
            for prompt, params, chosen, shown in zip(several, every, adapters, seen, strict=True)
        ]
        return self._run(requests, [p if isinstance(p, str) else None for p in several], use_tqdm)

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool | BarFactory = True,
        *,
        chat_template: str | None = None,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        tool_choice: str | Mapping[str, Any] = "auto",
        parallel_tool_calls: bool = True,
        thinking_token_budget: int | None = None,
        lora_request: AdapterChoice | Sequence[AdapterChoice | None] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation or several, using the model's chat template.

        Each choice has `text`, the content, `reasoning` and `tool_calls`.

        Args:
            messages: a list of messages with `role` and `content`, or a list of such lists. A content may have parts
                with images, see `message_images`.
            sampling_params, use_tqdm: as for `generate`.
            chat_template, ...: see `ModelClient.render`.
            tools: in OpenAI's form.
            tool_choice: see `Tools.choice`.
            parallel_tool_calls: several calls are allowed.
            thinking_token_budget: largest number of reasoning tokens.
            lora_request: as for `generate`.

        Raises:
            RequestError: as `generate` and `chat_prompt`.
        """
        from ferrum.client.chat_prompt import chat_request  # completions need no formats
        from ferrum.grammar.reply_guidance import ChatOptions
        from ferrum.grammar.tools import tools_of

        choice = tools_of(() if tools is None else tools).choice(tool_choice)
        options = ChatOptions(choice=choice, parallel=parallel_tool_calls, budget=thinking_token_budget)
        conversations = _conversations(messages)
        every = list(self._each_params(sampling_params, len(conversations)))
        adapters = self._each_adapter(lora_request, len(conversations))
        requests = [
            chat_request(
                self.client,
                conversation,
                params,
                options,
                chat_template=chat_template,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                chat_template_kwargs=chat_template_kwargs,
                adapters=chosen,
            )
            for conversation, params, chosen in zip(conversations, every, adapters, strict=True)
        ]
        return self._run([request for request, _ in requests], [text for _, text in requests], use_tqdm)

    def stream_chat(
        self,
        messages: Conversation,
        sampling_params: SamplingParams | None = None,
        options: ChatOptions | None = None,
        lora_request: AdapterChoice | Sequence[AdapterChoice] | None = None,
    ) -> Iterator[Delta]:
        """Answer one conversation and yield its deltas, as `stream`; `parts` separate reasoning and tool calls."""
        self.client.router.check_open()
        from ferrum.client.chat_prompt import chat_request
        from ferrum.grammar.reply_guidance import DEFAULT_CHAT

        params = self.default_sampling_params if sampling_params is None else sampling_params
        adapters = self.client.adapters.chosen(lora_request)
        request, _ = chat_request(self.client, messages, params, options or DEFAULT_CHAT, adapters)
        return self._deltas(request)

    def stream(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        priority: int = 0,
        deadline: float | None = None,
        add_special_tokens: bool = True,
        lora_request: AdapterChoice | Sequence[AdapterChoice] | None = None,
    ) -> Iterator[Delta]:
        """Complete one prompt and yield its deltas. Closing the iterator ends the request.

        `lora_request` names one adapter or several, see `generate`: several add their results in the order of their
        ids. The prompt is checked immediately and queued when iteration begins. Only the last delta of a choice has a
        finish reason; after a failure it is `FinishReason.ERROR`, and `error` holds the exception.

        Raises:
            RequestError: as `generate`.
            EngineDead, QueueFull: the engine accepts no request now.
        """
        self.client.router.check_open()
        params = self.default_sampling_params if sampling_params is None else sampling_params
        request = self.client.input_processor.process(
            prompt,
            params,
            RequestOptions(
                priority=priority,
                deadline=deadline,
                add_special_tokens=add_special_tokens,
                adapters=self.client.adapters.chosen(lora_request),
            ),
        )
        return self._deltas(request)

    def _deltas(self, request: Request) -> Iterator[Delta]:
        """Yield deltas. The generator references this object, so that the engine stays open while it is read."""
        yield from stream(self.client.router, self.client.tokenizer, request)

    def resume(self, resumptions: Sequence[Resumption], use_tqdm: bool | BarFactory = True) -> list[RequestOutput]:
        """Go on with requests that other engines began; each output is that of an undisturbed run.

        Its tokens begin with those that the request came with.

        Raises:
            RecordMismatch: this engine would compute other bits, or lacks an adapter.
            RequestError: nothing is left to generate.
            EngineDead: the engine has ended.
        """
        requests = [self.client.resumed(each) for each in resumptions]
        return self._run(requests, [None] * len(requests), use_tqdm)

    def score(
        self, prompts: Prompt | Sequence[Prompt], use_tqdm: bool | BarFactory = True
    ) -> list[list[Logprob | None]]:
        """Return the log-probability of each prompt token given the tokens before it; None for the first one.

        Raises:
            FerrumError: as `generate`, and also the failure of any prompt.
            EngineDead: the engine was closed meanwhile.
        """
        outputs = self.generate(prompts, SamplingParams(max_tokens=0, prompt_logprobs=0), use_tqdm)
        return [_scores(output) for output in outputs]

    def session(self, prompt: Prompt = ()) -> Session:
        """Return a session: a text that grows, forks and is truncated while its KV pages are reused."""

        def complete(tokens: tuple[int, ...], params: SamplingParams | None) -> RequestOutput:
            return self.generate([tokens], params, use_tqdm=False)[0]

        return Session(complete, self.client.tokenizer).append(prompt)

    def beam_search(
        self,
        prompts: Prompt | Sequence[Prompt],
        beam_width: int = 4,
        max_tokens: int = 16,
        *,
        length_penalty: float = 1.0,
        early_stopping: bool | str = False,
        ignore_eos: bool = False,
    ) -> list[list[Beam]]:
        """Return the best continuations of each prompt by beam search, best first; see `BeamRules`.

        Args:
            ignore_eos: treat end tokens like any other token.

        Raises:
            RequestError: as `generate`, and a prompt after which `max_tokens` do not fit in the context.
            FerrumError: the failure of any beam.
            EngineDead: the engine was closed meanwhile.
        """
        check_kind(ignore_eos, bool, param="ignore_eos")
        ends = () if ignore_eos else self.client.input_processor.eos_token_ids
        rules = BeamRules(
            beam_width=beam_width,
            max_tokens=max_tokens,
            context=self.info.max_sequence_length,
            length_penalty=length_penalty,
            early_stopping=early_stopping,
            ends=ends,
        )
        top = min(rules.num_candidates, self.info.vocab_size)
        one_more = SamplingParams(temperature=0.0, max_tokens=1, logprobs=top, ignore_eos=True)
        roots = [self.client.input_processor.process(prompt, one_more).prompt for prompt in _prompts(prompts)]
        longest = max(map(len, roots), default=0)
        if longest + rules.max_tokens > self.info.max_sequence_length:
            raise context_overflow(longest, rules.max_tokens, self.info.max_sequence_length, "max_tokens")
        searches = [BeamSearch(rules) for _ in roots]
        while any(search.running for search in searches):
            beams = [(*root, *b.token_ids) for root, s in zip(roots, searches, strict=True) for b in s.running]
            nexts = iter(self.generate(beams, one_more, use_tqdm=False))
            for search in searches:
                search.advance([_next_token(next(nexts)) for _ in search.running])
        return [search.found(self.client.tokenizer) for search in searches]

    def load_adapter(self, name: str, path: str, *, scale: float = 1.0) -> None:
        """Load an adapter under a name, between steps of running requests.

        A name that is loaded gets the new files; running requests keep the old ones.

        Args:
            path: of a PEFT directory or a GGUF file, or a hub id.
            scale: factor of its low-rank products.

        Raises:
            FerrumError: it cannot be loaded, and nothing has changed.
        """
        self.client.adapters.add(name, self.client.adapters.begin_load(path).result(), asked=path, scale=scale)

    def unload_adapter(self, name: str) -> None:
        """Forget an adapter. Running requests keep it. Raises RequestError for an unknown name."""
        self.client.adapters.remove(name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _each_params(
        self, given: SamplingParams | Sequence[SamplingParams] | None, count: int
    ) -> Sequence[SamplingParams]:
        if given is None:
            given = self.default_sampling_params
        if not isinstance(given, Sequence):
            check_params(given)
            return [given] * count
        if len(given) != count:
            raise RequestError(f"{len(given)} given for {count} prompts", param="sampling_params")
        return given

    def _each_adapter(
        self, given: AdapterChoice | Sequence[AdapterChoice | None] | None, count: int
    ) -> list[tuple[NamedAdapter, ...]]:
        if given is None or isinstance(given, str | LoRARequest):
            return [self.client.adapters.chosen(given)] * count
        if len(given) != count:
            raise RequestError(f"{len(given)} given for {count} prompts", param="lora_request")
        return [self.client.adapters.chosen(each) for each in given]

    def _run(
        self, requests: Sequence[Request], prompts: Sequence[str | None], use_tqdm: bool | BarFactory
    ) -> list[RequestOutput]:
        bar = progress_bar(use_tqdm if requests else False, len(requests), "prompts")
        return Batch(self.client.router, self.client.tokenizer, requests, prompts).run(bar)


def _prompts(prompts: Any) -> list[Any]:
    """Return a list of prompts; a text and a list of ids are one prompt each."""
    if isinstance(prompts, str):
        return [prompts]
    several = entries_of("prompts", prompts)
    return [several] if several and not _is_prompt(several[0]) else several


def _conversations(messages: Any) -> list[Any]:
    """Return a list of conversations; a list of messages is one conversation."""
    several = entries_of("messages", messages, wanted="a list")
    return several if several and not isinstance(several[0], Mapping) else [several]


def _is_prompt(entry: Any) -> bool:
    return isinstance(entry, str) or hasattr(entry, "__iter__")


def _next_token(output: RequestOutput) -> Logprobs:
    """Return the most likely tokens after a prompt. Raises its error."""
    (choice,) = output.outputs
    choice.check_whole()
    assert choice.logprobs is not None
    return choice.logprobs[0]


def _scores(output: RequestOutput) -> list[Logprob | None]:
    """Return the scores of a prompt's tokens. Raises its error."""
    output.outputs[0].check_whole()
    assert output.prompt_logprobs is not None
    return [
        None if position is None else position[token]
        for token, position in zip(output.prompt_token_ids, output.prompt_logprobs, strict=True)
    ]
