"""The contract's verbs on models with recurrent layers, alone and next to attention.

A state goes back over drafts and over a failed call, not to any length: tests that truncate further must be refused.
"""

from __future__ import annotations

import pytest
from test_contract_local import counted_kit

import recurrent_model
from contract_kit import POISON, Kit, Maker, Options
from contract_verbs import *  # noqa: F403 - the tests themselves
from ferrum.core.errors import Unsupported

CUT = {
    "test_a_full_pool_does_not_fix_the_best_batch_size",
    "test_base_and_clone_are_independent",
    "test_every_change_makes_older_handles_stale",
    "test_invalid_speculation_is_refused_by_field_and_position",
    "test_lengths_may_be_integers_of_any_type",
    "test_truncation_equals_never_having_gone_further",
}
"""Tests that truncate to a length of their choice."""
OF_ATTENTION = {
    "test_a_batch_holds_at_most_a_sequence_for_each_page",
    "test_a_full_pool_does_not_fix_the_best_batch_size",
    "test_attention_weights_are_distributions_or_refused",
    "test_a_handle_describes_the_stored_sequence",
    "test_exhaustion_raises_and_is_undone",
    "test_what_can_never_fit_in_the_pool_overflows_the_context",
}
"""Tests of attention and of limits by pages, which a model without attention has none of."""


@pytest.fixture(params=["recurrent", "recurrent with attention"])
def make(request: pytest.FixtureRequest) -> Maker:
    kind, name = request.param, request.function.__name__
    if kind == "recurrent" and name in OF_ATTENTION:
        pytest.skip("the model has no attention")
    if name in CUT:
        request.applymarker(pytest.mark.xfail(raises=Unsupported, strict=True))

    def made(**options: int | None) -> Kit:
        chosen = Options(**options)  # type: ignore[arg-type]
        executor = recurrent_model.load(
            kind,
            "reference",
            page_size=chosen.page_size,
            kv_capacity=chosen.num_pages * chosen.page_size,
            max_batch_size=chosen.max_batch_size,
            max_sequence_length=chosen.max_sequence_length,
            poison=POISON,
        )
        return counted_kit(executor, executor.pages.check)

    return made
