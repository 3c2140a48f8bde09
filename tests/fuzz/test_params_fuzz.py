"""Random sampling parameters round-trip through JSON and pickle."""

from __future__ import annotations

import json
import pickle

from hypothesis import given
from hypothesis import strategies as st

from ferrum.core.params import SamplingParams
from ferrum.core.structured_outputs import StructuredOutputs

tokens = st.integers(0, 2**31)
params_strategy = st.builds(
    SamplingParams,
    n=st.integers(1, 128),
    temperature=st.floats(0, 2),
    top_k=st.integers(-1, 100),
    seed=st.none() | st.integers(-(2**63), 2**63 - 1),
    stop=st.lists(st.text(min_size=1), max_size=4),
    stop_token_ids=st.lists(tokens),
    max_tokens=st.none() | st.integers(50, 99),
    min_tokens=st.integers(0, 50),
    logprobs=st.none() | st.integers(-1, 20),
    logit_bias=st.none() | st.dictionaries(tokens, st.floats(-100, 100)),
    allowed_token_ids=st.none() | st.lists(tokens, min_size=1),
    ignore_eos=st.booleans(),
    structured_outputs=st.none()
    | st.builds(StructuredOutputs, json=st.fixed_dictionaries({"const": st.text() | st.integers() | st.none()}))
    | st.builds(StructuredOutputs, choice=st.lists(st.text(min_size=1), min_size=1)),
)


@given(params_strategy)
def test_json_and_pickle_round_trip(params: SamplingParams) -> None:
    assert SamplingParams.from_dict(json.loads(json.dumps(params.to_dict()))) == params
    assert pickle.loads(pickle.dumps(params)) == params
