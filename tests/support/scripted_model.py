"""A model that says what a script says: an engine without numerics whose replies are texts of a test.

Its tokens are bytes and the markers of a format. Masks hold for it as for any model: it says the next allowed byte
where its text is forbidden.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache

from fakes import FakeExecutor, FakeModel, Visible
from ferrum.cache.page_table import PageGroup, PageTable
from ferrum.client.model_client import Parts
from ferrum.core.errors import EngineDead
from ferrum.core.step import FinishedStep, Sampling, StepBatch
from ferrum.engine.host import Built, ThreadHost
from ferrum.engine.messages import EngineInfo
from ferrum.guides.compiled_guides import CompiledGuides
from ferrum.scheduler.queues import POLICIES
from ferrum.scheduler.scheduler import Scheduler
from ferrum.text.chat_template import ChatTemplate
from ferrum.text.generation_config import GenerationConfig
from ferrum.text.tokenizer import Tokenizer

Script = Callable[[str], str]
"""Returns the reply to a prompt."""

END = "<|im_end|>"


class ByteTokenizer(Tokenizer):
    """A token for each byte, one that ends texts, and one for each marker; markers are special tokens."""

    def __init__(self, markers: Sequence[str] = ()) -> None:
        self._marks = {mark: 256 + place for place, mark in enumerate(dict.fromkeys((END, *markers)))}
        self._texts = {token: mark for mark, token in self._marks.items()}
        longest = sorted(self._marks, key=len, reverse=True)
        self._split = re.compile("(" + "|".join(map(re.escape, longest)) + ")")

    @property
    def vocab_size(self) -> int:
        return 256 + len(self._marks)

    @property
    def bos_token_id(self) -> int | None:
        return None

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        return (self._marks[END],)

    @property
    def special_ids(self) -> frozenset[int]:
        return frozenset(self._texts)

    @property
    def added_ids(self) -> frozenset[int]:
        return self.special_ids

    def is_special(self, token_id: int) -> bool:
        return token_id in self._texts

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        ids: list[int] = []
        for piece in self._split.split(text):
            ids += [self._marks[piece]] if piece in self._marks else piece.encode()
        return ids

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        kept = (each for each in ids if not (skip_special_tokens and self.is_special(each)))
        return b"".join(map(self.token_bytes, kept)).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < 256 else self._texts.get(token_id, "").encode()

    def token_text(self, token_id: int) -> str:
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def piece(self, token_id: int) -> str | None:
        return self.token_text(token_id) if token_id < self.vocab_size else None


@lru_cache(maxsize=64)
def reply_tokens(tokenizer: ByteTokenizer, script: Script, prompt: tuple[int, ...]) -> list[int]:
    """Return the tokens of the reply to a prompt."""
    return tokenizer.encode(script(tokenizer.decode(prompt, skip_special_tokens=False)))


@dataclass(frozen=True)
class ScriptedModel(FakeModel):
    """Continues a prompt with the text that the script has for it."""

    tokenizer: ByteTokenizer = field(default_factory=ByteTokenizer)
    script: Script = str

    def choose(self, visible: Visible, position: int, sampling: Sampling) -> int:
        reply = reply_tokens(self.tokenizer, self.script, visible[0][: sampling.prompt_length])
        place = position - sampling.prompt_length
        return reply[place] if place < len(reply) else self.tokenizer.eos_token_ids[0]


class ScriptedExecutor(FakeExecutor):
    """The fake executor with that model, and with a lease for hosts."""

    def __init__(self, pages: PageTable, model: ScriptedModel, seconds_per_step: float) -> None:
        super().__init__(pages, vocabulary=model.vocabulary)
        self.model = model
        self._seconds = seconds_per_step

    @contextmanager
    def lease(self, owner: str) -> Iterator[None]:
        yield

    def on_loss(self, call: Callable[[EngineDead], None]) -> None:
        """Nothing is lost."""

    def shutdown(self) -> None:
        pass

    def submit(self, batch: StepBatch) -> FinishedStep:
        time.sleep(self._seconds)
        return super().submit(batch)


@dataclass(frozen=True)
class ScriptedRecipe:
    """A recipe of an engine that speaks by a script."""

    script: Script
    tokenizer: ByteTokenizer
    seconds_per_step: float = 0.0
    context: int = 65_536

    def __call__(self) -> Built:
        pages = PageTable([PageGroup("full", 8192, 64)])
        model = ScriptedModel(self.tokenizer.vocab_size, tokenizer=self.tokenizer, script=self.script)
        scheduler = Scheduler(
            pages,
            policy=POLICIES["fcfs"],
            max_tokens_per_step=4096,
            max_sequences=64,
            max_sequence_length=self.context,
        )
        info = EngineInfo("scripted", self.tokenizer.vocab_size, self.context, pages.capacity_tokens, "scripted-1")
        executor = ScriptedExecutor(pages, model, self.seconds_per_step)
        return Built(executor, scheduler, info, guides=CompiledGuides(lambda: self.tokenizer, info.vocab_size))


def scripted_parts(script: Script, template: str, markers: Sequence[str], **options: float) -> Parts:
    """Return client parts on a scripted engine whose model has that chat template."""
    tokenizer = ByteTokenizer(markers)
    return Parts(
        host=ThreadHost(ScriptedRecipe(script, tokenizer, **options)),
        tokenizer=tokenizer,
        generation=GenerationConfig(eos_token_ids=tokenizer.eos_token_ids),
        chat_template=ChatTemplate(template, {"eos_token": END, "bos_token": ""}),
    )
