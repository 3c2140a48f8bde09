"""Guided sequences in the scheduler: a rest keeps them on the fast path, and its end puts masks into their spans."""

from __future__ import annotations

from engine_fakes import FakeRecipe, ServedFake, expected, greedy, input_processor
from ferrum.client.input_processor import RequestOptions
from ferrum.core.guidance import Grammar, Guidance, Marker
from ferrum.core.types import Request
from ferrum.scheduler.step_plan import StepPlan
from guides_kit import OpenGuide

LIMITED = RequestOptions(guidance=Guidance(grammar=Grammar(source="any", triggers=(Marker(text="=", token=3),))))


class Played:
    """A scheduler that runs one request with a guide on the fake executor."""

    def __init__(self, guide: OpenGuide, recipe: FakeRecipe | None = None) -> None:
        built = (recipe or FakeRecipe())()
        assert isinstance(built.executor, ServedFake)
        built.executor.owner = "test"
        self.executor, self.scheduler, self.guide = built.executor, built.scheduler, guide
        self.request: Request = input_processor().process([5, 6, 7], greedy(24, ignore_eos=True), LIMITED)
        self.scheduler.add(self.request, lambda: guide)

    def step(self) -> StepPlan:
        """Run a step."""
        plan = self.scheduler.plan()
        assert plan is not None
        self.scheduler.commit(plan, self.executor.submit(plan.batch).result())
        return plan


def test_sequence_stays_on_the_fast_path_while_its_guide_rests() -> None:
    played = Played(OpenGuide(unconstrained=True))
    plans = [played.step() for _ in range(24)]
    assert all(plan.batch.spans[0].extras is None for plan in plans)
    assert [plan.tenant is not None for plan in plans[3:]] == [True] * 21
    assert played.guide.taken == 0 and played.guide.closed


def test_watched_token_ends_the_rest_and_the_guide_gets_all_tokens() -> None:
    tokens = expected(input_processor().process([5, 6, 7], greedy(24, ignore_eos=True), LIMITED))
    watched = next(token for token in tokens[5:] if token not in tokens[:5])
    at = tokens.index(watched)
    played = Played(OpenGuide(unconstrained=True, trigger_tokens=frozenset({watched})))
    while played.guide.taken == 0:
        assert played.step().batch.spans[0].masks == ()
    assert played.guide.taken == at + 1
    played.guide.unconstrained = False
    assert len(played.step().batch.spans[0].masks) == 1
    assert played.guide.taken == at + 2, "a guide that does not rest gets each token"


def test_budget_ends_the_rest_at_its_token() -> None:
    played = Played(OpenGuide(unconstrained=True, unconstrained_until=7))
    while played.guide.taken == 0:
        played.step()
    assert played.guide.taken == 7


def test_drafts_beyond_a_rest_have_masks() -> None:
    """Right drafts of three tokens: the budget ends within the third draft at the latest."""
    played = Played(OpenGuide(unconstrained=True, unconstrained_until=6), FakeRecipe(drafts=3))
    masked = False
    while played.guide.taken == 0:
        span = played.step().batch.spans[0]
        generated = span.end - 3 - span.drafts
        masked |= bool(span.masks)
        assert bool(span.masks) == (generated + span.drafts >= 6) and len(span.masks) in (0, 1 + span.drafts)
    assert masked
