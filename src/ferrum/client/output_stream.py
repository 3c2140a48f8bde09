"""`RequestStream`: one request on the client's side, from the engine's token events to deltas with text.

Only this module turns generated tokens into text. A stop string ends its choice here, at the token that completes it:
later tokens are in no text, no ids, no log-probabilities and no usage.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from threading import Lock
from typing import TYPE_CHECKING

from ferrum.client.request_output import Delta, Logprob, Logprobs, Usage, join
from ferrum.core.errors import FerrumError, RequestError
from ferrum.core.step import TokenLogprobs
from ferrum.core.types import FinishReason, Made, Request, TokenEvent
from ferrum.formats.output_parts import Part, PartKind, joined_parts
from ferrum.speculative.predicted_output import PredictedText, PredictionFollower
from ferrum.text.detokenizer import Detokenizer
from ferrum.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from ferrum.formats.output_parser import OutputReader


@dataclass(slots=True)
class _Choice:
    """The state of one choice.

    Attributes:
        detokenizer: None without a tokenizer, and for an output that is read.
        reader: of an output that is read; see `Request.reading`.
        follower: counts tokens that agree with the request's prediction; None without one.
        finished: its last delta was made; further events are ignored.
    """

    detokenizer: Detokenizer | None
    reader: OutputReader | None
    follower: PredictionFollower | None
    num_tokens: int = 0
    cached_tokens: int = 0
    finished: bool = False


class RequestStream:
    """The deltas of one request, written by the engine's reports and read by its client, on two threads.

    Untaken deltas of a choice are joined, so that a slow client gets one delta per choice. They are joined as binary
    digits carry over: joining each to all before it would copy a long unread output at every token.

    Args:
        request: as the engine has it; its `request_id` is unique in the engine.
        request_id: the public id.
        tokenizer: None serves token ids only.
        wake: called, from any thread, when there is something to `take`.
        observe: called with every delta when it is made.

    Attributes:
        begun: a delta was taken.
        finished: every choice has had its last delta, taken or not.
        settled: the engine, too, has finished every choice.
        before: the delta of the tokens that the request came with (`Request.made`), which is not among those taken.
    """

    def __init__(
        self,
        request: Request,
        request_id: str,
        tokenizer: Tokenizer | None,
        wake: Callable[[], None],
        observe: Callable[[Request, Delta], None] | None = None,
    ) -> None:
        self.request = request
        self.request_id = request_id
        self.wake = wake
        self.begun = self.finished = self.settled = False
        self._tokenizer = tokenizer
        self._observe = observe
        predicted = PredictedText(request.prediction) if request.prediction else None
        self._choices = {choice: _new_choice(request, tokenizer, predicted) for choice in request.choices}
        self._running = set(request.choices)
        self._untaken: dict[int, list[Delta]] = {}  # of each choice, each with fewer tokens than the one before it
        self._prompt_logprobs: tuple[Logprobs | None, ...] | None = None
        self._lock = Lock()
        self.before = None if request.made is None or not request.known else self._go_on(request.made)

    def _go_on(self, made: Made) -> Delta | None:
        """Bring the text to where the choice goes on; return the delta of the tokens so far."""
        if self.request.params.logprobs is not None and len(made.logprobs or ()) != len(made.token_ids):
            raise RequestError(f"{len(made.token_ids)} tokens need as many log-probabilities", param="made")
        observe, self._observe = self._observe, None  # they were seen where they were generated
        event = TokenEvent(self.request.request_id, made.choice, made.token_ids, made.logprobs)
        self._fold(self._choices[made.choice], event)
        self._observe = observe
        if self._choices[made.choice].finished:
            raise RequestError("these tokens end the choice: nothing is left to generate", param="made")
        return self.take()

    def push(self, event: TokenEvent) -> bool:
        """Fold an event; return whether its choice ended here while the engine still computes it."""
        with self._lock:
            if event.finish_reason is not None:
                self._running.discard(event.choice)
                self.settled = not self._running
            choice = self._choices[event.choice]
            if choice.finished:
                return False
            self._fold(choice, event)
            return choice.finished and event.choice in self._running

    def fail(self, error: FerrumError) -> None:
        """End every unfinished choice with this error; the engine sends no more events."""
        with self._lock:
            self._running.clear()
            self.settled = True
            for index, choice in self._choices.items():
                if not choice.finished:
                    name = self.request.request_id
                    self._fold(choice, TokenEvent(name, index, finish_reason=FinishReason.ERROR, error=error))

    def take(self) -> Delta | None:
        """Return everything new of the choice that has waited longest; None if there is nothing."""
        with self._lock:
            if not self._untaken:
                return None
            self.begun = True
            deltas = self._untaken.pop(next(iter(self._untaken)))
            return deltas[0] if len(deltas) == 1 else reduce(lambda later, first: join(first, later), deltas[::-1])

    def _fold(self, choice: _Choice, event: TokenEvent) -> None:
        """Turn an event into a delta, if it brings anything, and keep that until it is taken."""
        text, parts, kept, stop = self._decode(choice, event)
        finish = FinishReason.STOP if stop is not None else event.finish_reason
        if finish is not None:
            if stop is None and choice.detokenizer is not None:
                text = (text or "") + choice.detokenizer.finish()
        elif not kept and not text and event.prompt_logprobs is None:
            return
        tokens = event.token_ids[:kept]
        logprobs = None
        if self.request.params.logprobs is not None:
            logprobs = tuple(named_logprobs(each, self._tokenizer) for each in (event.logprobs or ())[:kept])
        if event.prompt_logprobs is not None and self._prompt_logprobs is None:  # large: once for all choices
            named = (named_logprobs(each, self._tokenizer) for each in event.prompt_logprobs)
            self._prompt_logprobs = (None, *named)
        if choice.follower is not None:
            choice.follower.feed(tokens)
        # Count only now: an event that raised above is followed by the one that reports the failure.
        choice.num_tokens += kept
        if finish is not None:
            choice.finished, choice.cached_tokens = True, event.cached_tokens
            self.finished = all(each.finished for each in self._choices.values())
        self._keep(
            Delta(
                request_id=self.request_id,
                index=event.choice,
                token_ids=tokens,
                text=text,
                logprobs=logprobs,
                prompt_logprobs=None if event.prompt_logprobs is None else self._prompt_logprobs,
                finish_reason=finish,
                stop_reason=event.stop_reason if stop is None else stop,
                usage=self._usage() if finish is not None and self.finished else None,
                error=event.error if stop is None else None,
                seed=self.request.seed,
                trace_id=self.request.trace_id,
                scheduled=event.scheduled,
                preemptions=event.preemptions,
                embedding=event.embedding,
                parts=parts,
                cached_tokens=event.cached_tokens,
            )
        )

    def _decode(
        self, choice: _Choice, event: TokenEvent
    ) -> tuple[str | None, tuple[Part, ...] | None, int, str | None]:
        """Return the new text and its parts, how many tokens belong to the output, and the stop string found.

        A stop token is in the ids; like stop strings it is in the text only with `include_stop_str_in_output`.
        """
        tokens = event.token_ids
        if choice.reader is not None:
            return self._read(choice.reader, event)
        if choice.detokenizer is None:
            return None, None, len(tokens), None
        stopped = event.finish_reason is FinishReason.STOP
        hidden = stopped and not self.request.params.include_stop_str_in_output
        decoded = choice.detokenizer.push(tokens[:-1] if hidden else tokens)
        return decoded.text, None, len(tokens) if decoded.stop is None else decoded.kept, decoded.stop

    def _read(
        self, reader: OutputReader, event: TokenEvent
    ) -> tuple[str | None, tuple[Part, ...] | None, int, str | None]:
        """Return as `_decode`. The reader sees stop tokens, since a marker may be one."""
        hides = event.finish_reason is FinishReason.STOP and not self.request.params.include_stop_str_in_output
        read = reader.push(event.token_ids, hide_last=hides)
        parts, kept = read.parts, len(event.token_ids) if read.stop is None else read.kept
        if event.finish_reason is not None and read.stop is None:
            cut = event.finish_reason is not FinishReason.STOP or event.stop_reason is not None
            parts = joined_parts((*parts, *reader.finish(cut=cut)))
        content = "".join([part.text for part in parts if part.kind is PartKind.CONTENT])
        return content, parts, kept, read.stop

    def _keep(self, delta: Delta) -> None:
        """Add a delta to the untaken ones."""
        if self._observe is not None:
            self._observe(self.request, delta)
        deltas = self._untaken.pop(delta.index, [])
        while deltas and len(deltas[-1].token_ids) <= len(delta.token_ids):
            delta = join(deltas.pop(), delta)
        self._untaken[delta.index] = [*deltas, delta]

    def _usage(self) -> Usage:
        choices = self._choices.values()
        accepted = [0 if choice.follower is None else choice.follower.accepted for choice in choices]
        length = len(self.request.prediction)
        return Usage(
            prompt_tokens=len(self.request.prompt),
            completion_tokens=sum(choice.num_tokens for choice in choices),
            cached_tokens=max(choice.cached_tokens for choice in choices),
            accepted_prediction_tokens=sum(accepted),
            rejected_prediction_tokens=sum(max(0, length - count) for count in accepted),
            reasoning_tokens=sum(0 if each.reader is None else each.reader.reasoning_tokens for each in choices),
        )


def _new_choice(request: Request, tokenizer: Tokenizer | None, predicted: PredictedText | None) -> _Choice:
    params, detokenizer, reader = request.params, None, None
    if tokenizer is not None and request.reading is not None:
        from ferrum.formats.output_parser import OutputReader  # only chats need the parser

        reader = OutputReader(
            request.reading,
            tokenizer,
            stop=params.stop,
            include_stop=params.include_stop_str_in_output,
            min_tokens=params.min_tokens,
            skip_special_tokens=params.skip_special_tokens,
        )
    elif tokenizer is not None:
        detokenizer = Detokenizer(
            tokenizer,
            stop=params.stop,
            include_stop=params.include_stop_str_in_output,
            min_tokens=params.min_tokens,
            skip_special_tokens=params.skip_special_tokens,
        )
    return _Choice(detokenizer, reader, None if predicted is None else PredictionFollower(predicted))


def named_logprobs(position: TokenLogprobs, tokenizer: Tokenizer | None) -> Logprobs:
    """Return the log-probabilities of a position by token id: the chosen token first, then the top and given ones."""
    texts = (lambda _: None) if tokenizer is None else tokenizer.token_text
    named = {position.token: Logprob(position.logprob, position.rank, texts(position.token))}
    for rank, (token, logprob) in enumerate(position.top, start=1):
        named.setdefault(token, Logprob(logprob, rank, texts(token)))
    for each in position.given:
        named.setdefault(each.token, Logprob(each.logprob, each.rank, texts(each.token)))
    return named
