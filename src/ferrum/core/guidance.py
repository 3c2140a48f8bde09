"""`Guidance`: limits on the tokens of one request: a budget of reasoning, and a grammar. Plain data for the engine.

`grammar` makes it from tools and schemas; `guides` enforces it next to the engine.
"""

from __future__ import annotations

from dataclasses import dataclass

from ferrum.core.json_record import JsonRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker(JsonRecord):
    """A text that begins or ends a part of the output.

    Attributes:
        text: not empty.
        token: the token that alone spells it; then only this token counts, not the same text from other tokens.
    """

    text: str
    token: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Thought(JsonRecord):
    """The reasoning before the rest of an output.

    Attributes:
        open, close: its markers.
        opened: the prompt ends within it. Otherwise it begins if the first tokens are those of `open`.
        budget: tokens of reasoning after which `close` is forced; None: unlimited.
        end: the text that is forced at the budget: the format's own end, `close` included.
    """

    open: Marker
    close: Marker
    opened: bool = False
    budget: int | None = None
    end: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grammar(JsonRecord):
    """What may be generated.

    Attributes:
        source: a grammar in llguidance's form: Lark, or its JSON of several grammars. It decides about each token from
            its begin on: no other token is allowed, an end token only where the grammar is complete.
        triggers: the grammar begins after one of these, wherever it appears, also within reasoning; before, every token
            is allowed. Without triggers it begins with the first token, or after the thought if there is one.
        repeats: once complete, every token is allowed again until the next trigger.
    """

    source: str
    triggers: tuple[Marker, ...] = ()
    repeats: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Guidance(JsonRecord):
    """The limits on one request's tokens; at least one of both."""

    thought: Thought | None = None
    grammar: Grammar | None = None
