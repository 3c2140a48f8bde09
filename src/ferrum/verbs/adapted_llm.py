"""`AdaptedLLM`: any model as a `DecoderOnlyLLM` that can always go back, by computing again what it cannot undo."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from secrets import token_hex
from typing import Any, Final, Protocol

import numpy as np

from ferrum.contract.decoder_llm import DecoderOnlyLLM, LlmRuntimeConfig, LogitsPolicy, UnifiedItem
from ferrum.core.errors import RequestError, StepError, UnknownSequence, Unsupported
from ferrum.core.span_checks import check_kind, check_tokens
from ferrum.core.values import kept_length, shown, whole
from ferrum.kernels.operations import F32

METHODS: Final = ("config", "prefill", "decode", "release")


class MinimalLLM(Protocol):
    """The least that a model must have. Logits are any kind of array of numbers, [V] or [1, V].

    What else it has is used: `kv_capacity`, `unified_forward`, `truncate_kv`, `fork`, `reset` and `set_lora_adapter` as
    in `DecoderOnlyLLM`; `decode_batch` and `forward_verify` with logits of any kind. A method that raises Unsupported
    or NotImplementedError counts as missing.
    """

    @property
    @abstractmethod
    def config(self) -> LlmRuntimeConfig:
        """The sizes needed to run it."""

    @abstractmethod
    def prefill(self, cache_id: str, tokens: Sequence[int]) -> Any:
        """Begin the sequence with these tokens, or continue it, and return the logits after the last one.

        A model that cannot continue is noticed at its first second chunk, and then decodes chunks token by token.
        """

    @abstractmethod
    def decode(self, cache_id: str, token: int, pos: int) -> Any:
        """Process one more token at position `pos`, and return the logits after it."""

    @abstractmethod
    def release(self, cache_id: str) -> None:
        """Forget the sequence; an unknown one is no error."""


class AdaptedLLM(DecoderOnlyLLM):
    """A model with all verbs: those that it has, and defaults for the others.

    It keeps the tokens of each sequence. A truncation, a fork or an error that the model cannot handle processes them
    again. Without `decode_batch` a batch is decoded one by one, without `forward_verify` a verification token by token.

    Args:
        model: the model. Only this adapter may change its sequences from now on.

    Raises:
        RequestError: the model lacks one of the four methods, or its `config` is no `LlmRuntimeConfig`.
    """

    def __init__(self, model: DecoderOnlyLLM | MinimalLLM) -> None:
        if missing := [name for name in METHODS if isinstance(model, type) or not hasattr(model, name)]:
            reason = f"must be a DecoderOnlyLLM, or an object with {', '.join(METHODS)}: {shown(model)} lacks "
            raise RequestError(reason + ", ".join(missing), param="model")
        check_kind(model.config, LlmRuntimeConfig, param="config")
        self.model = model
        self._tokens: dict[str, list[int]] = {}
        self._adapters: dict[str, list[tuple[int, str | None]]] = {}  # id -> the position from which each is used
        self._chunks = ChunkedPrefill(model, self._row)

    @property
    def config(self) -> LlmRuntimeConfig:
        return self.model.config

    def __contains__(self, cache_id: str) -> bool:
        return cache_id in self._tokens

    def length(self, cache_id: str) -> int:
        return len(self._tokens.get(cache_id, ()))

    # Steps

    def unified_forward(self, items: Sequence[UnifiedItem]) -> list[F32 | None]:
        """Process any mixture of items, as `DecoderOnlyLLM`. Raises also StepError for logits of a wrong shape."""
        if len({item.cache_id for item in items}) < len(items):
            raise RequestError("a sequence appears twice", param="cache_id")
        for item in items:
            self._check(item)
        if not items:
            return []
        moved = set[str]()
        try:
            outputs = self._run(items, moved)
        except BaseException as error:
            doubted = [self._restore(cache_id) for cache_id in moved]
            if not (any(doubted) and isinstance(error, Exception)):
                raise
            self._chunks.refute()
            return self.unified_forward(items)
        for item in items:
            self._tokens.setdefault(item.cache_id, []).extend(map(int, item.tokens))
        return outputs

    def _check(self, item: UnifiedItem) -> None:
        if item.cache_id not in self._tokens and item.pos:
            raise UnknownSequence(f"unknown sequence {shown(item.cache_id)}", param="cache_id")
        if whole("start", item.pos) != (stored := self.length(item.cache_id)):
            raise RequestError(f"must be the stored length {stored}, not {item.pos}", param="start")
        size, longest = self.config.vocab_size, self.config.max_seq_len
        check_tokens(item.tokens, stored, vocab_size=size, max_sequence_length=longest)

    def _run(self, items: Sequence[UnifiedItem], moved: set[str]) -> list[F32 | None]:
        """Return each item's logits; `moved` receives the sequences that the model may have changed."""
        with self._together("unified_forward", items, moved) as forward:
            outputs = one_per(forward(items), len(items), "unified_forward")
            return [self._rows_of(item, each) for item, each in zip(items, outputs, strict=True)]
        rows = dict[str, F32]()
        for item in items:
            if not _is_decode(item):
                moved.add(item.cache_id)
                rows[item.cache_id] = self._prompt(item)
        if decodes := [item for item in items if _is_decode(item)]:
            rows |= self._decodes(decodes, moved)
        return [None if item.policy is LogitsPolicy.NONE else rows[item.cache_id] for item in items]

    def _rows_of(self, item: UnifiedItem, logits: Any) -> F32 | None:
        if item.policy is LogitsPolicy.NONE:
            return None
        count = len(item.tokens) if item.policy is LogitsPolicy.ALL else 1
        return logits_of(logits, [(count, self.config.vocab_size)], item.cache_id)

    def _prompt(self, item: UnifiedItem) -> F32:
        """Process a prompt or chunk, and return the logits of its last token, or of all for policy ALL."""
        cache_id, tokens, stored = item.cache_id, [int(token) for token in item.tokens], item.pos
        if item.policy is not LogitsPolicy.ALL:
            if stored:
                return self._chunk(cache_id, tokens)
            return self._row(self.model.prefill(cache_id, tokens), cache_id)
        rows: list[F32] = []
        if not stored:
            rows.append(self._row(self.model.prefill(cache_id, tokens[:1]), cache_id))
        if rest := tokens[len(rows) :]:
            rows.append(self._verify(cache_id, rest, stored + len(rows)))
        return np.concatenate(rows)

    def _chunk(self, cache_id: str, tokens: list[int]) -> F32:
        stored, capacity = self._tokens[cache_id], self.kv_capacity()
        free = math.inf if capacity is None else capacity - sum(map(len, self._tokens.values()))
        can_try = len(stored) + len(tokens) <= free and cache_id not in self._adapters
        return self._chunks.process(cache_id, stored, tokens, partial(self._refill, cache_id), can_try=can_try)

    def _verify(self, cache_id: str, tokens: list[int], pos: int) -> F32:
        if len(tokens) > 1:
            with suppress(Unsupported):
                count, size = len(tokens), self.config.vocab_size
                logits = self._own("forward_verify")(cache_id, tokens)
                return logits_of(logits, [(count, size), (count * size,)], cache_id).reshape(count, size)
        decoded = [self.model.decode(cache_id, token, pos + index) for index, token in enumerate(tokens)]
        return np.concatenate([self._row(logits, cache_id) for logits in decoded])

    def _decodes(self, items: Sequence[UnifiedItem], moved: set[str]) -> dict[str, F32]:
        """Process one more token of each of several sequences."""
        steps = [(item.cache_id, int(item.tokens[0]), item.pos) for item in items]
        if len(steps) > 1:
            with self._together("decode_batch", items, moved) as decode_batch:
                logits = one_per(decode_batch(steps), len(steps), "decode_batch")
                return {step[0]: self._row(each, step[0]) for step, each in zip(steps, logits, strict=True)}
        rows = dict[str, F32]()
        for cache_id, token, pos in steps:
            moved.add(cache_id)
            rows[cache_id] = self._row(self.model.decode(cache_id, token, pos), cache_id)
        return rows

    def _row(self, logits: Any, cache_id: str) -> F32:
        size = self.config.vocab_size
        return logits_of(logits, [(size,), (1, size)], cache_id)

    @contextmanager
    def _together(self, name: str, items: Sequence[UnifiedItem], moved: set[str]) -> Iterator[Callable[..., Any]]:
        """Enter a context in which a method runs several items; it ends early if the model does not have the method."""
        names = {item.cache_id for item in items} - moved
        moved |= names
        try:
            yield self._own(name)
        except Unsupported:
            moved -= names

    def _own(self, name: str) -> Callable[..., Any]:
        """Return a method that the model may lack: it then raises Unsupported, also for NotImplementedError."""
        method = getattr(self.model, name, None)

        def call(*args: Any) -> Any:
            if method is None:
                raise Unsupported(name, f"{type(self.model).__name__} has none")
            try:
                return method(*args)
            except NotImplementedError as error:
                raise Unsupported(name, f"{type(self.model).__name__} does not implement it") from error

        return call

    # Ways back

    def _restore(self, cache_id: str) -> bool:
        """Return a sequence of a failed step to its tokens; one that cannot be is released.

        Returns: whether it may have failed because `prefill` does not continue sequences.
        """
        doubted = self._chunks.doubts(cache_id)
        try:
            if cache_id not in self._tokens:
                self.model.release(cache_id)
            elif doubted:
                self._chunks.forget(cache_id)
                self._refill(cache_id)
            else:
                self._go_back(cache_id)
        except Exception:  # noqa: BLE001 - the step's own error is raised; later calls raise UnknownSequence
            self.release(cache_id)
            return False
        return doubted

    def _go_back(self, cache_id: str) -> None:
        """Let the model forget what it stores beyond the sequence's tokens."""
        length, keeps_empty = self.length(cache_id), isinstance(self.model, DecoderOnlyLLM)
        if isinstance(self.model, DecoderOnlyLLM) and self.model.length(cache_id) == length:
            return
        if length or keeps_empty:
            with suppress(Exception):  # also a model that refuses a length it already has
                self._own("truncate_kv")(cache_id, length)
                return
        self._refill(cache_id)

    def _refill(self, cache_id: str) -> None:
        """Begin a sequence again in the model, with its tokens and the adapters they were computed with."""
        tokens, adapters = self._tokens[cache_id], self._adapters.get(cache_id, [])
        self.model.release(cache_id)
        ends = [*(start for start, _ in adapters), len(tokens)]
        self._feed(cache_id, tokens[: ends[0]], 0)
        for (start, name), end in zip(adapters, ends[1:], strict=True):
            self._own("set_lora_adapter")(cache_id, name)
            self._feed(cache_id, tokens[start:end], start)

    def _feed(self, cache_id: str, tokens: list[int], pos: int) -> None:
        if not tokens:
            return
        try:
            self._own("unified_forward")([UnifiedItem(cache_id, tuple(tokens), pos, LogitsPolicy.NONE)])
        except Unsupported:
            if pos:
                self._verify(cache_id, tokens, pos)
            else:
                self.model.prefill(cache_id, tokens)

    # Sequences

    def truncate_kv(self, cache_id: str, length: int) -> None:
        tokens = self._known(cache_id)
        if (kept := kept_length("length", length, len(tokens))) == len(tokens):
            return
        del tokens[kept:]
        adapters = self._adapters.pop(cache_id, [])
        if adapters:
            self._adapters[cache_id] = [(min(start, kept), name) for start, name in adapters]
        try:
            self._go_back(cache_id)
        except BaseException:
            self.release(cache_id)
            raise

    def fork(self, source: str, target: str) -> None:
        tokens = self._known(source)
        if target in self._tokens:
            raise RequestError(f"{shown(target)} exists", param="cache_id")
        self._tokens[target] = list(tokens)
        if source in self._adapters:
            self._adapters[target] = list(self._adapters[source])
        try:
            try:
                self._own("fork")(source, target)
            except Unsupported:
                self._refill(target)
        except BaseException:
            self.release(target)
            raise

    def set_lora_adapter(self, cache_id: str, name: str | None) -> None:
        if not hasattr(self.model, "set_lora_adapter"):
            raise Unsupported(
                "adapters", f"{shown(name)} for {shown(cache_id)}: {type(self.model).__name__} takes none"
            )
        self._own("set_lora_adapter")(cache_id, name)
        self._adapters.setdefault(cache_id, []).append((self.length(cache_id), name))
        self._tokens.setdefault(cache_id, [])

    def _known(self, cache_id: str) -> list[int]:
        if cache_id not in self._tokens:
            raise UnknownSequence(f"unknown sequence {shown(cache_id)}", param="cache_id")
        return self._tokens[cache_id]

    def release(self, cache_id: str) -> None:
        self.model.release(cache_id)
        self._tokens.pop(cache_id, None)
        self._adapters.pop(cache_id, None)
        self._chunks.forget(cache_id)

    def reset(self) -> None:
        for cache_id in tuple(self._tokens):
            self.release(cache_id)
        with suppress(Unsupported):
            self._own("reset")()

    def kv_capacity(self) -> int | None:
        own = getattr(self.model, "kv_capacity", None)
        return None if own is None else own()


def _is_decode(item: UnifiedItem) -> bool:
    return item.pos > 0 and len(item.tokens) == 1


# Later chunks of prompts


class Prefilling(Protocol):
    """A model that processes prompts and tokens."""

    def prefill(self, cache_id: str, tokens: Sequence[int]) -> Any:
        """See `MinimalLLM`."""

    def decode(self, cache_id: str, token: int, pos: int) -> Any:
        """See `MinimalLLM`."""

    def release(self, cache_id: str) -> None:
        """See `MinimalLLM`."""


class ChunkedPrefill:
    """Later chunks of prompts: by one `prefill`, if the model's continues sequences, else token by token.

    A model cannot say which of the two it does. So its first later chunk is compared with `prefill` of the whole
    sequence under another name. The answer is kept once the chunk alone gives other logits.

    Args:
        model: the model.
        row: checks logits of a sequence and returns them as float32 [1, V].
    """

    def __init__(self, model: Prefilling, row: Callable[[Any, str], F32]) -> None:
        self._model = model
        self._row = row
        self._continues: bool | None = None
        self._doubtful: set[str] = set()

    def process(
        self, cache_id: str, stored: Sequence[int], tokens: list[int], refill: Callable[[], None], *, can_try: bool
    ) -> F32:
        """Process the next chunk of a sequence, and return the logits after it.

        Args:
            cache_id: the sequence.
            stored: its tokens before the chunk.
            tokens: the chunk.
            refill: begins the sequence again with the stored tokens.
            can_try: whether the model has room for the comparison, and runs it with the same weights.
        """
        if self._continues:
            return self._row(self._model.prefill(cache_id, tokens), cache_id)
        trial = self._trial([*stored], tokens) if self._continues is None and can_try else None
        if trial is not None:
            row = self._continued(cache_id, tokens, *trial)
            if row is not None:
                return row
            refill()
        decoded = [self._model.decode(cache_id, token, pos) for pos, token in enumerate(tokens, len(stored))]
        if trial is not None:
            self.refute()
        return self._row(decoded[-1], cache_id)

    def doubts(self, cache_id: str) -> bool:
        """Whether a sequence was continued by `prefill` without proof that this works."""
        return cache_id in self._doubtful

    def refute(self) -> None:
        """Remember that `prefill` does not continue sequences."""
        self._continues = False

    def forget(self, cache_id: str) -> None:
        """Forget a released sequence."""
        self._doubtful.discard(cache_id)

    def _continued(self, cache_id: str, tokens: list[int], whole: F32, alone: F32) -> F32 | None:
        """Return the logits of a chunk processed by `prefill`; None if they are not those of the whole sequence."""
        try:
            row = self._row(self._model.prefill(cache_id, tokens), cache_id)
        except Exception:  # noqa: BLE001 - a model may refuse a known sequence by any error
            return None
        if not _alike(row, whole):
            return None
        if _alike(alone, whole):
            self._doubtful.add(cache_id)
        else:
            self._continues = True
            self._doubtful.clear()
        return row

    def _trial(self, stored: list[int], tokens: list[int]) -> tuple[F32, F32] | None:
        """Return the logits after the whole sequence, and after the chunk alone; None if the model has no room."""
        name, rows = f"trial-{token_hex(8)}", list[F32]()
        for prompt in ([*stored, *tokens], tokens):
            try:
                rows.append(self._row(self._model.prefill(name, prompt), name))
            except Exception:  # noqa: BLE001 - the chunk itself is decoded then, and raises what is wrong with it
                return None
            finally:
                self._model.release(name)
        return rows[0], rows[1]


def _alike(one: F32, other: F32) -> bool:
    """Return whether two rows of logits are equal up to rounding: the work was cut in another way."""
    return bool(np.abs(one - other).max() <= 0.01 * np.abs(other).max())


# Logits that a model returns


def logits_of(value: Any, shapes: Sequence[tuple[int, ...]], cache_id: str) -> F32:
    """Return logits from a model as float32 [rows, V].

    Args:
        value: any kind of array or nested lists of numbers.
        shapes: the shapes that it may have, the usual one first; V is the last number of that one.
        cache_id: the sequence, for messages.

    Raises:
        StepError: no array, no numbers, or another shape; the message names what was found.
    """
    what = f"the model's logits of {shown(cache_id)}"
    if value is None:
        raise StepError(f"{what} are missing: it returned None, not {list(shapes[0])}")
    try:
        array = np.asarray(value)
    except Exception as error:
        raise StepError(f"{what} are no array: {error}") from error
    if array.shape not in shapes:
        raise StepError(f"{what} have the shape {list(array.shape)}, not {list(shapes[0])}")
    if array.dtype.kind not in "fiu" and array.dtype.name != "bfloat16":
        raise StepError(f"{what} have the dtype {array.dtype}, not float32")
    with np.errstate(over="ignore"):  # an infinity is refused with the other values that are not finite
        return array.astype(np.float32, copy=False).reshape(-1, shapes[0][-1])


def one_per(value: Any, count: int, what: str) -> list[Any]:
    """Return a model's outputs as a list of `count`. Raises StepError for another number of them."""
    try:
        outputs = list(value)
    except TypeError:
        raise StepError(f"the model's {what} returned {shown(value)}, not {count} outputs") from None
    if len(outputs) != count:
        raise StepError(f"the model's {what} returned {len(outputs)} outputs, not {count}")
    return outputs
