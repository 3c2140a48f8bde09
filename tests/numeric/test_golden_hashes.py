"""Logits have the bits of a committed table, on every machine, in every tier and in the reference.

A change of bits fails here until the version in `kernels/numerics.py` moves and `tests/support/golden_table.py` has
written the table again.
"""

from __future__ import annotations

import json
from itertools import cycle

import pytest

from ferrum.kernels.numerics import NUMERICS_ID
from ferrum.models.families import FAMILIES, load_families
from golden_models import CASES, FAMILY_FIELDS, OTHER_FIELDS, key, logits_hash
from golden_table import GOLDEN
from native_twin import TIERS

TABLE = json.loads(GOLDEN.read_text())
STRIDE = 7  # coprime with the numbers of formats: a part of the cases has every family and format

KERNELS = [*TIERS, "reference"]


def expect(cases: tuple[tuple[str, str, str], ...], kernels: str) -> None:
    options = {"kernels": kernels} if kernels == "reference" else {"kernels": "native", "isa": kernels}
    threads = cycle((None,) if kernels == "reference" else (1, 2))
    found = {key(*case): logits_hash(*case, threads=next(threads), **options) for case in cases}
    assert found == {name: TABLE["logits"][name] for name in found}


def test_the_table_has_every_family_and_this_arithmetic() -> None:
    load_families()
    assert {*FAMILY_FIELDS, *OTHER_FIELDS} == set(FAMILIES.names())
    assert TABLE["numerics_id"] == NUMERICS_ID
    assert list(TABLE["logits"]) == [key(*case) for case in CASES]


@pytest.mark.parametrize("kernels", KERNELS)
def test_logits_have_the_golden_bits(kernels: str) -> None:
    """The best tier computes every case, the others every seventh."""
    index = KERNELS.index(kernels)
    expect(CASES if index == 0 and TIERS else CASES[index % STRIDE :: STRIDE], kernels)


@pytest.mark.soak
@pytest.mark.parametrize("kernels", KERNELS)
def test_all_logits_have_the_golden_bits_in_every_tier(kernels: str) -> None:
    expect(CASES, kernels)
