"""Guides: the masks of thought, triggers and grammar, with and without drafts, and their rest."""

from __future__ import annotations

import pytest

from engine_fakes import EOS
from ferrum.core.errors import RequestError, StepError
from ferrum.core.guidance import Grammar, Guidance, Marker, Thought
from ferrum.guides import guide_program as grammar_tokens
from guide_kit import END, MORE, allowed, guide_of, letter, tokens_of, trace

AB = 'start: "ab"'
BUDGET = Thought(open=letter("<"), close=letter(">"), opened=True, budget=2, end="!>")


def limits(source: str = AB, *triggers: Marker, repeats: bool = False, thought: Thought | None = None) -> Guidance:
    return Guidance(thought=thought, grammar=Grammar(source=source, triggers=triggers, repeats=repeats))


def thinking(text: str | None = None, *, opened: bool = True) -> Thought:
    """Return a thought without a budget; `text` closes it, as bytes."""
    close = letter(">") if text is None else Marker(text=text)
    return Thought(open=letter("<"), close=close, opened=opened)


def opened_by(text: str) -> Thought:
    """Return a thought without a budget that a text opens."""
    return Thought(open=Marker(text=text), close=letter(">"))


CASES = {
    "grammar": (limits(), "ab\n", ["a", "b", END, END]),
    "grammar that may go on": (limits("start: /a+/"), "aa", ["a", "a" + END, "a" + END]),
    "trigger": (limits(AB, letter("=")), "x=ab", ["any", "any", "a", "b", END]),
    "trigger that repeats": (limits(AB, letter("="), repeats=True), "=ab=", ["any", "a", "b", "any", "a"]),
    "text as trigger": (limits(AB, Marker(text="==")), "=x==a", ["any", "any", "any", "any", "a", "b"]),
    "first of two triggers": (limits(AB, Marker(text="--"), letter("=")), "-=", ["any", "any", "a"]),
    "thought, then grammar": (limits(thought=thinking()), "x>a", [MORE, MORE, "a", "b"]),
    "thought closed by text": (limits(thought=thinking("]]")), "]x]]", [MORE, MORE, MORE, MORE, "a"]),
    "thought that may open": (limits(thought=thinking(opened=False)), "<x>", ["<a", MORE, MORE, "a"]),
    "thought that does not open": (limits(thought=thinking(opened=False)), "ab", ["<a", "b", END]),
    "thought that two tokens open": (limits(thought=opened_by("<-")), "<-x>", ["<a", "-", MORE, MORE, "a"]),
    "grammar that begins like a thought": (limits('start: "<b"', thought=opened_by("<-")), "<b", ["<", "-b", END]),
    "trigger within a thought": (limits(AB, letter("="), thought=BUDGET), "=a", ["any", "a", "b"]),
    "budget": (Guidance(thought=BUDGET), "xy!>z", ["any", "any", "!", ">", "any", "any"]),
    "budget, then grammar": (limits(thought=BUDGET), "xy!>a", [MORE, MORE, "!", ">", "a", "b"]),
    "closed in time": (limits(thought=BUDGET), "x>ab", [MORE, MORE, "a", "b", END]),
}


@pytest.mark.parametrize("case", CASES)
def test_masks_follow_thought_triggers_and_grammar(case: str) -> None:
    guidance, text, expected = CASES[case]
    assert trace(guidance, text) == expected


@pytest.mark.parametrize("case", CASES)
def test_masks_after_drafts_are_those_without(case: str) -> None:
    guidance, text, expected = CASES[case]
    guide = guide_of(guidance)
    assert allowed(guide, text) == expected
    assert allowed(guide) == expected[:1], "drafts change nothing"
    guide.advance(tokens_of(text[:1]))
    assert allowed(guide, text[1:]) == expected[1:]


def test_drafts_that_are_not_allowed_end_the_masks() -> None:
    assert allowed(guide_of(limits()), "abx") == ["a", "b", END, "any"]
    assert allowed(guide_of(limits()), "xab") == ["a", "any", "any", "any"]


@pytest.mark.parametrize(("opened", "text"), [(True, ""), (False, "<")])
def test_budget_of_zero_closes_at_once(opened: bool, text: str) -> None:
    thought = Thought(open=letter("<"), close=letter(">"), opened=opened, budget=0, end=">")
    assert trace(Guidance(thought=thought), text + ">")[-2:] == [">", "any"]


def test_end_of_a_thought_stops_where_the_grammar_has_no_place_for_it() -> None:
    thought = Thought(open=letter("<"), close=letter(">"), opened=True, budget=1, end=">ax")
    assert trace(limits(thought=thought), "x>a") == [MORE, ">", "a", "b"]


def test_rest_of_a_token_after_a_trigger_belongs_to_the_grammar() -> None:
    """The toy tokenizer spells its token 0 with three letters."""
    guide = guide_of(limits('start: "0>" "b"', Marker(text="x<")))
    guide.advance(tokens_of("x"))
    assert allowed(guide) == ["any"]
    guide.advance((0,))
    assert allowed(guide) == ["b"]


def test_tokens_with_a_rest_that_the_grammar_refuses_are_forbidden() -> None:
    guide = guide_of(limits(AB, Marker(text="x<")))
    assert allowed(guide) == ["any"]
    guide.advance(tokens_of("x"))
    (mask,) = guide.masks(())
    assert mask is not None and not mask[0] & 1 and mask[0] & 2


def test_grammars_name_added_tokens_and_text_never_matches_them() -> None:
    assert trace(limits('start: <[0]> "a"'), "")[0] == "<0>"
    assert "<0>" not in trace(limits("start: /.+/"), "")[0]


def test_all_end_tokens_of_the_request_are_allowed() -> None:
    guide = guide_of(limits("start: /a+/"), ends=(EOS, *tokens_of("xy")))
    guide.advance(tokens_of("a"))
    assert allowed(guide) == ["axy" + END]


RESTS = {
    "id trigger": (limits(AB, letter("=")), "x", True, "=", 1 << 62),
    "text trigger": (limits(AB, Marker(text="==")), "x", False, "", None),
    "grammar": (limits(), "", False, "", None),
    "thought": (limits(AB, letter("="), thought=BUDGET), "x", True, "=>", 2),
    "thought before a grammar": (limits(thought=thinking()), "x", False, "", None),
    "budget": (Guidance(thought=BUDGET), "x", True, ">", 2),
    "budget reached": (Guidance(thought=BUDGET), "xy", False, "", None),
    "thought closed": (Guidance(thought=BUDGET), "x>", True, "", 1 << 62),
}


@pytest.mark.parametrize("case", RESTS)
def test_guide_rests_until_a_watched_token_or_the_budget(case: str) -> None:
    guidance, text, rests, watched, until = RESTS[case]
    guide = guide_of(guidance)
    guide.advance(tokens_of(text))
    assert guide.unconstrained is rests
    if rests:
        assert (guide.trigger_tokens, guide.unconstrained_until) == (frozenset(tokens_of(watched)), until)


def test_forced_tokens_are_known_one_token_late() -> None:
    guide = guide_of(limits('start: "(" ("abc" | "xyz") ")"'))
    guide.advance(tokens_of("("))
    assert guide.forced(9) == ()
    guide.advance(tokens_of("x"))
    assert guide.forced(9) == tokens_of("yz)") and guide.forced(2) == tokens_of("yz")
    guide._settled, settled = guide._settled, guide._settled
    guide.advance(tokens_of("y"))
    guide._settled = settled
    assert guide.forced(9) == tokens_of("z)"), "known from the state before the newest token"


def test_grammar_that_fails_makes_reading_its_mask_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(grammar_tokens.LIMITS, "max_items_in_row", 6)
    guide = guide_of(limits('start: e\ne: e e | "a"'))
    guide.advance(tokens_of("aaaaaaaaa"))
    masks = guide.masks(tokens_of("a"))
    assert len(masks) == 2 and len(masks[:1]) == 1, "a slice does not read"
    for row in range(2):
        with pytest.raises(StepError, match="grammar failed"):
            masks[row]


def test_grammar_that_does_not_compile_is_refused() -> None:
    with pytest.raises(RequestError, match=r"does not compile: .*unknown name"):
        guide_of(limits("start: nothing"))
