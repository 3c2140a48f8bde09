"""`Sequence`, the state of a choice, and functions of one: its start, next span, sampled tokens, and events."""

from __future__ import annotations

from collections.abc import Sequence as Series
from dataclasses import dataclass, field, replace

from ferrum.core.errors import ContextOverflow, FerrumError, KvExhausted, RequestError
from ferrum.core.rule_fields import reads_history
from ferrum.core.step import (
    CARRY,
    AdapterUse,
    Array,
    Hidden,
    Rows,
    Sampling,
    Score,
    Span,
    SpanExtras,
    SpanResult,
    TokenLogprobs,
    Want,
    block_around,
)
from ferrum.core.types import FinishReason, Pooling, Request, TokenEvent
from ferrum.scheduler.guides import UNLIMITED, Guide


@dataclass(slots=True, eq=False)
class Sequence:
    """One choice of a request in the scheduler, and the scheduler's only mutable state of it.

    Attributes:
        tokens: prompt and generated ids; the `history` of `sampling` is the same list. Choices that have generated
            nothing share one list, since prompts are long and many choices may wait.
        computed: tokens in the KV cache. Spans process the rest.
        ahead: tokens that steps in flight process, drafts not counted.
        pending: tokens that steps in flight sample: each will be one more known token.
        limit: number of tokens, prompt and output together, at which it ends.
        rank: smaller is served first within a tenant queue: unique, and always the same.
        tenant: name of the tenant queue.
        page_hashes: hashes of the full pages of `tokens`; empty without a prefix cache.
        cached: prompt tokens that came from the prefix cache.
        preemptions: how often the sequence lost its pages and started over.
        scheduled: monotonic seconds when it last left the queue before its first token; None while it waits.
        may_draft: the drafter may have draft tokens for it, now or later.
        drafted: the drafter was asked for some, and may keep a state of it.
        pooled: the sum of the hidden states so far; an array of the executor's kind.
        guide: limits its next tokens; None without limits.
        adapters: of the request, as spans name them.
        snapshot_lengths: lengths at which its state is named, ascending; none without states.
    """

    request: Request
    choice: int
    cache_id: str
    tokens: list[int]
    sampling: Sampling
    rank: tuple[float, ...] = ()
    tenant: str = ""
    computed: int = 0
    ahead: int = 0
    pending: int = 0
    limit: int = UNLIMITED
    page_hashes: list[bytes] = field(default_factory=list)
    cached: int = 0
    preemptions: int = 0
    scheduled: float | None = None
    pooled: Array | None = None
    finish: FinishReason | None = field(default=None)
    may_draft: bool = False
    drafted: bool = False
    guide: Guide | None = None
    adapters: tuple[AdapterUse, ...] = ()
    snapshot_lengths: tuple[int, ...] = ()

    @property
    def generated(self) -> int:
        """Number of sampled tokens."""
        return len(self.tokens) - len(self.request.prompt)

    def extend(self, tokens: tuple[int, ...]) -> None:
        """Append sampled tokens; the first ones move the sequence to a token list that it does not share."""
        if not self.generated:
            self.tokens = list(self.tokens)
            self.sampling = replace(self.sampling, history=self.tokens)
        self.tokens += tokens


def check_made(request: Request, context: int) -> None:
    """Refuse generated tokens that nothing can follow.

    Args:
        context: largest number of prompt and output tokens together.

    Raises:
        RequestError: the request has several choices, or the tokens end their choice.
    """
    if request.made is None:
        return
    if request.params.n != 1:
        raise RequestError(f"one choice goes on, not {request.params.n}: set n to 1", param="made")
    (blank,) = begin(replace(request, made=replace(request.made, token_ids=())))
    if judge(blank, request.known, context).finish is not None:
        raise RequestError("these tokens end the choice: nothing is left to generate", param="made")


def check_length(request: Request, context: int, storable: int) -> None:
    """Refuse a prompt that can never run.

    Args:
        request: the request.
        context: largest number of prompt and output tokens together.
        storable: longest sequence that the KV pool holds, in tokens.

    Raises:
        RequestError: an empty prompt.
        ContextOverflow: the prompt leaves no room for a token in the context.
        KvExhausted: the prompt is longer than the whole pool.
    """
    length, limit = len(request.prompt), context - (request.params.max_tokens != 0)
    if not length:
        raise RequestError("must not be empty", param="prompt")
    if length > limit:
        raise ContextOverflow(f"{length} tokens exceed the limit of {limit} for this context", param="prompt")
    if length > storable:
        raise KvExhausted(
            f"a prompt of {length} tokens exceeds the KV pool, which holds {storable} (raise --kv-capacity)"
        )


def begin(request: Request, rank: tuple[float, ...] = (), tenant: str = "") -> list[Sequence]:
    """Return the choices of a request of that rank and tenant queue, with nothing computed."""
    tokens, choices = [*request.prompt, *request.known], list[Sequence]()
    adapters = tuple(each.use for each in request.adapters)
    for choice in request.choices:
        sampling = Sampling(
            request.params,
            request.seed,
            len(request.prompt),
            tokens,
            choice=choice,
            eos_token_ids=request.eos_token_ids,
            bad_words=request.bad_words,
            dry_sequence_breakers=request.dry_sequence_breakers,
        )
        name = f"{request.request_id}/{choice}"
        made = Sequence(request, choice, name, tokens, sampling, (*rank, choice), tenant, adapters=adapters)
        choices.append(made)
    return choices


def shared_length(sequence: Sequence) -> int:
    """Return how many cached tokens the choices of the request share: each runs the prompt's last token itself.

    If that one is the last of a block, each runs the block.
    """
    if sequence.request.params.n == 1:
        return 0
    last = len(sequence.request.prompt) - 1
    block = block_around(sequence.request.inputs, last)
    return last if block is None else block.start


def reusable(sequence: Sequence, scored: int) -> int:
    """Return how many tokens need not run if their keys and values are cached: never the last one.

    Args:
        sequence: the sequence.
        scored: as for `make_span`; tokens whose successors need log-probabilities have to run.
    """
    request = sequence.request
    if request.pooling is Pooling.MEAN:
        return 0
    if wants_scores(request) and scored < len(request.prompt):
        return scored - 1
    return len(sequence.tokens) - 1


def wants_scores(request: Request) -> bool:
    """Return whether the prompt's tokens need log-probabilities: they come with a choice's first token."""
    return request.params.prompt_logprobs is not None and not request.known


def make_span(sequence: Sequence, count: int, *, scored: int, drafts: tuple[int, ...] = ()) -> Span:
    """Return the span of the sequence's next `count` tokens and its draft tokens.

    Only the span that reaches the last known token samples. Drafts follow that one token alone, with logits for every
    row.

    Args:
        sequence: the sequence.
        count: number of known tokens. One that a step in flight samples is sent as CARRY.
        scored: prompt tokens that have their log-probabilities already; the first one needs none.
        drafts: draft tokens.
    """
    start = sequence.computed + sequence.ahead
    end = start + count
    request = sequence.request
    finishing = end == len(sequence.tokens) + sequence.pending and request.params.max_tokens != 0
    carried = (CARRY,) if end > len(sequence.tokens) else ()
    score = _score(sequence, start, end, scored) if wants_scores(request) else None
    masks = guided_masks(sequence, drafts) if finishing and sequence.guide is not None else ()
    unspecial = not (drafts or masks or sequence.adapters or request.inputs) and score is None
    return Span(
        sequence.cache_id,
        start,
        tuple(sequence.tokens[start:end]) + carried + drafts,
        Want.TOKEN if finishing else Want.NONE,
        Rows.ALL if drafts else Rows.LAST,
        Hidden.NONE if request.pooling is None else _hidden(sequence, end),
        sequence.sampling if finishing else None,
        None if unspecial else _extras(sequence, start, end + len(drafts), len(drafts), score, masks),
    )


def _extras(
    sequence: Sequence, start: int, end: int, drafts: int, score: Score | None, masks: Series[bytes | None]
) -> SpanExtras | None:
    """Return what makes the sequence's span from `start` to `end` special; None for a part that is plain."""
    adapters = tuple(each for each in sequence.adapters if each.start < end)
    inputs = tuple([part for each in sequence.request.inputs for part in each.within(start, end)])
    grids = tuple([each for each in sequence.request.grids if each.start < end])
    return SpanExtras(drafts=drafts, masks=masks, score=score, adapters=adapters, inputs=inputs, grids=grids).or_none()


def guided_masks(sequence: Sequence, drafts: tuple[int, ...]) -> Series[bytes | None]:
    """Return the masks of the next span's rows; none while its guide is unconstrained, also after the drafts."""
    guide = sequence.guide
    if guide is None or stays_unconstrained(sequence, drafts):
        return ()
    _catch_up(sequence, guide)
    return guide.masks(drafts)


def guide_along(sequence: Sequence, tokens: tuple[int, ...]) -> None:
    """Give the guide the newest tokens, unless it is unconstrained: then it needs them once that ends."""
    if sequence.guide is not None and not stays_unconstrained(sequence, tokens, known=True):
        _catch_up(sequence, sequence.guide)


def stays_unconstrained(sequence: Sequence, tokens: tuple[int, ...], *, known: bool = False) -> bool:
    """Return whether the guide is unconstrained, and stays so after some tokens.

    Args:
        sequence: one with a guide.
        tokens: its next tokens.
        known: its last ones instead.
    """
    guide = sequence.guide
    assert guide is not None
    generated = sequence.generated + (0 if known else len(tokens))
    return guide.unconstrained and generated < guide.unconstrained_until and guide.trigger_tokens.isdisjoint(tokens)


def _catch_up(sequence: Sequence, guide: Guide) -> None:
    """Give the guide all tokens that it has not been given."""
    if guide.taken < sequence.generated:
        guide.advance(tuple(sequence.tokens[len(sequence.request.prompt) + guide.taken :]))


def expects_drafts(sequence: Sequence) -> bool:
    """Return whether the drafter may have draft tokens, those that a guide forces included."""
    return sequence.may_draft or (sequence.guide is not None and not sequence.guide.unconstrained)


def _score(sequence: Sequence, start: int, end: int, scored: int) -> Score | None:
    """Return the request for log-probabilities of the prompt tokens after the span's, if any is missing."""
    top, prompt = sequence.request.params.prompt_logprobs, sequence.request.prompt
    if top is None or min(end + 1, len(prompt)) <= scored:
        return None
    return Score(prompt[start + 1 : end + 1], top)


def _hidden(sequence: Sequence, end: int) -> Hidden:
    """Return which hidden states the sequence's embedding needs."""
    match sequence.request.pooling:
        case Pooling.MEAN:
            return Hidden.ALL
        case Pooling.LAST if end == len(sequence.tokens):
            return Hidden.LAST
    return Hidden.NONE


def pool(sequence: Sequence, span: Span, result: SpanResult) -> None:
    """Add a span's hidden states one by one in ascending order, so the sum does not depend on the chunks."""
    if span.start == 0 or sequence.request.pooling is Pooling.LAST:
        sequence.pooled = 0.0
    assert result.hidden is not None
    for row in result.hidden:
        sequence.pooled = sequence.pooled + row


def embedding(sequence: Sequence) -> tuple[float, ...] | None:
    """Return the embedding of a computed prompt, or None if it was not requested."""
    if sequence.pooled is None:
        return None
    count = len(sequence.request.prompt) if sequence.request.pooling is Pooling.MEAN else 1
    return tuple((sequence.pooled / count).tolist())


def unplanned(sequence: Sequence) -> int:
    """Return how many known tokens are neither computed nor in flight.

    A token that a step in flight samples counts, unless the sequence certainly ends with it.
    """
    known = len(sequence.tokens) + sequence.pending
    if sequence.pending and known >= sequence.limit:
        return 0
    return known - sequence.computed - sequence.ahead


def runs_ahead(sequence: Sequence) -> bool:
    """Return whether a step of the sequence may be planned before its newest token is known.

    Rules that read the newest tokens need them on the host, and a guide may have a mask after each of its trigger
    tokens.
    """
    guide = sequence.guide
    if guide is not None and not (
        guide.unconstrained and not guide.trigger_tokens and guide.unconstrained_until == UNLIMITED
    ):
        return False
    return not reads_history(sequence.sampling)


def draft_limit(sequence: Sequence, context: int) -> int:
    """Return how many draft tokens can be accepted: one token is sampled anyway, and none after the end."""
    limit = context - len(sequence.tokens)
    max_tokens = sequence.request.params.max_tokens
    if max_tokens is not None:
        limit = min(limit, max_tokens - sequence.generated)
    return max(0, limit - 1)


@dataclass(frozen=True, slots=True)
class CountedTokens:
    """The sampled tokens that count, and the reason if the last of them ends the sequence."""

    tokens: tuple[int, ...]
    finish: FinishReason | None = None
    stop_reason: int | None = None


def judge(sequence: Sequence, sampled: tuple[int, ...], context: int) -> CountedTokens:
    """Find the first sampled token that ends the sequence, and discard those after it.

    A stop token counts after `min_tokens` others; before that the sampler forbids it.

    Args:
        sequence: the sequence, without the sampled tokens.
        sampled: the sampled tokens.
        context: largest number of prompt and output tokens together.
    """
    request = sequence.request
    for count, token in enumerate(sampled, 1):
        generated = sequence.generated + count
        if token in request.stop_token_ids and generated > request.params.min_tokens:
            stop_reason = None if token in request.eos_token_ids else token
            return CountedTokens(sampled[:count], FinishReason.STOP, stop_reason)
        if generated == request.params.max_tokens or len(sequence.tokens) + count == context:
            return CountedTokens(sampled[:count], FinishReason.LENGTH)
    return CountedTokens(sampled)


def event(
    sequence: Sequence,
    token_ids: tuple[int, ...] = (),
    logprobs: tuple[TokenLogprobs, ...] | None = None,
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None,
    stop_reason: int | None = None,
    error: FerrumError | None = None,
) -> TokenEvent:
    """Return the event of a sequence; the last one if the sequence has ended."""
    return TokenEvent(
        sequence.request.request_id,
        sequence.choice,
        token_ids,
        logprobs,
        prompt_logprobs,
        sequence.finish,
        stop_reason,
        error=error,
        trace_id=sequence.request.trace_id,
        scheduled=sequence.scheduled,
        cached_tokens=sequence.cached,
        embedding=embedding(sequence)
        if sequence.pooled is not None and sequence.finish is FinishReason.LENGTH
        else None,
        preemptions=sequence.preemptions,
    )
