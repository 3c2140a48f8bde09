"""The constants that steer adaptive policies, in one place. docs/policies.md has the measurement behind each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyConfig:
    """Constants of the policies that adapt to load. No bit of an answer depends on them."""

    admission_growth: int = 128
    """Tokens of growth, at most, that admission reserves for each sequence that a stop token may end."""

    prompt_share: float = 0.5
    """Part of a step that prompts get at least, where decoding alone exceeds the target time."""

    min_prompt_tokens: int = 16
    """Prompt tokens of a step at least. Fewer cost nearly as much, and every step must make progress."""

    first_token_ratio: float = 0.5
    """Decoding sequences skip a step that brings first tokens if it then takes at most this part of the time."""

    cost_rate: float = 0.2
    """Weight of a new step in the moving average of its size."""

    cost_slope_memory: float = 0.98
    """Factor by which older samples of the price of stored tokens count less at every step."""

    cost_outlier: float = 2.0
    """A step counts as at most this many times its predicted duration."""

    cost_floor: float = 0.25
    """Smallest prediction, as part of the average duration of steps of that size."""

    rows_per_read: int = 8
    """Rows of a span that attend to a stored token in the time it takes to read it."""

    batch_gain: float = 1.05
    """Throughput that doubling the batch must bring, relative to before, for the larger batch to be worth it."""

    prompt_token_weight: float = 1.0
    """What a prompt token counts in a tenant's account (Sheng et al., OSDI 2024)."""

    output_token_weight: float = 2.0
    """What a generated token counts in a tenant's account (Sheng et al., OSDI 2024)."""

    max_tenant_accounts: int = 4096
    """Tenants whose accounts are kept. Beyond them, tenants without a sequence are forgotten."""

    prefix_lookup_pages: int = 2048
    """Pages looked up per step for requests that then have to wait: a few milliseconds."""

    prefix_lookup_cost: int = 16
    """Fixed cost of one lookup, in pages."""

    max_partial_pages: int = 16_384
    """Full pages whose partial successors are remembered, least recently used ones forgotten first."""

    team_interval_seconds: float = 0.1
    """Seconds of steps between two decisions about the number of threads."""

    team_crowded_rate: float = 50
    """Preemptions per second of the main thread from which on the team is halved."""

    team_calm_rate: float = 20
    """Preemptions per second up to which the team may be doubled."""

    team_long_operation_seconds: float = 0.0005
    """Mean seconds of an operation, on all threads, from which on a step keeps the whole team."""

    team_max_patience: int = 32
    """Calm intervals to wait before a doubling, at most. The wait doubles after each doubling that did not hold."""

    draft_min_gain: float = 1.05
    """Tokens per second that drafts must promise, relative to a step without drafts."""

    grammar_draft_delay: float = 0.02
    """Part of a step by which tokens that grammars force may delay the other sequences of the step."""

    draft_initial_acceptance: float = 0.6
    """Acceptance rate assumed of a kind of draft before any was compared."""

    draft_sequence_window: int = 16
    """Draft tokens that the acceptance rate of a sequence averages over."""

    draft_kind_window: int = 64
    """Draft tokens that the acceptance rate of a kind of draft averages over; new sequences begin with that rate."""

    draft_retry_steps: int = 64
    """Steps without drafts after which one draft is verified anyway, since costs or texts may have changed."""

    gc_young_objects: int = 20_000
    """New objects after which a server's garbage collector examines the youngest ones (Python's default is 700)."""

    streams_per_turn: int = 4
    """Streams that are woken in one turn of an event loop."""


POLICY: Final = PolicyConfig()
"""The constants in effect."""
