"""Random outputs under random limits: masks do not depend on how tokens arrive, and a rest hides no limit."""

from __future__ import annotations

from random import Random

import pytest

from engine_fakes import EOS, VOCABULARY
from ferrum.core.guidance import Grammar, Guidance, Marker, Thought
from ferrum.guides.sequence_guide import SequenceGuide
from guide_kit import guide_of, letter

SOURCES = (
    'start: "ab"',
    "start: /a+b?/",
    'start: "(" start ")" | "x"',
    'start: ("a" "<")+ "-"',
    "start: /[a-d]{1,4}>/",
)


def random_guidance(draw: Random) -> Guidance:
    markers = [letter("="), letter("-"), Marker(text="<<"), Marker(text="a-"), Marker(text="x")]
    close = draw.choice([letter(">"), Marker(text=">>")])
    thought = Thought(
        open=draw.choice([letter("<"), Marker(text="<!")]),
        close=close,
        opened=draw.random() < 0.5,
        budget=draw.choice([None, 0, 1, 4]),
        end=draw.choice(["", "."]) + close.text + draw.choice(["", "ab", "?"]),
    )
    triggers = tuple(draw.sample(markers, draw.randrange(3)))
    grammar = Grammar(source=draw.choice(SOURCES), triggers=triggers, repeats=draw.random() < 0.5)
    kind = draw.randrange(3)
    return Guidance(thought=thought if kind else None, grammar=grammar if kind < 2 else None)


def allowed_in(mask: bytes | None) -> list[int]:
    if mask is None:
        return list(range(VOCABULARY))
    return [token for token in range(VOCABULARY) if mask[token >> 3] >> (token & 7) & 1]


def walk(guide: SequenceGuide, draw: Random, length: int) -> tuple[list[int], list[bytes | None]]:
    """Advance by random allowed tokens, often markers; return them, and the mask before each and at the end."""
    tokens, masks = list[int](), list[bytes | None]()
    favoured = [ord(each) - 31 for each in "<>=-!abx()"]
    while len(tokens) < length:
        (mask,) = guide.masks(())
        masks.append(mask)
        if guide.unconstrained:
            assert mask is None and (len(tokens) < guide.unconstrained_until)
        choices = [token for token in allowed_in(mask) if token != EOS]
        if not choices:
            return tokens, masks
        likely = [token for token in choices if token in favoured]
        tokens.append(draw.choice(likely if likely and draw.random() < 0.8 else choices))
        guide.advance((tokens[-1],))
    masks += guide.masks(())
    return tokens, masks


@pytest.mark.parametrize("count", [150, pytest.param(4_000, marks=pytest.mark.soak)])
def test_masks_do_not_depend_on_how_tokens_arrive(count: int) -> None:
    for seed in range(count):
        draw = Random(seed)
        guidance = random_guidance(draw)
        tokens, masks = walk(guide_of(guidance), draw, draw.randrange(1, 25))
        guide, taken = guide_of(guidance), 0
        while taken < len(tokens):
            drafts = tuple(tokens[taken : taken + draw.randrange(6)])
            rests, until, watched = guide.unconstrained, guide.unconstrained_until, guide.trigger_tokens
            assert list(guide.masks(drafts)) == masks[taken : taken + len(drafts) + 1], (seed, guidance)
            if rests and watched.isdisjoint(drafts) and taken + len(drafts) < until:
                assert set(masks[taken : taken + len(drafts) + 1]) == {None}, (seed, guidance)
            count = draw.randrange(1, 5)
            guide.advance(tuple(tokens[taken : taken + count]))
            taken = min(taken + count, len(tokens))
            forced = guide.forced(9)
            assert tuple(tokens[taken : taken + len(forced)]) == forced[: len(tokens) - taken], (seed, guidance)
