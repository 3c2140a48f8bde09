"""`Scale`: the options of replicas on Ray Serve. A field's metadata has its help text."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Final

from ferrum.core.config import STALL_SECONDS
from ferrum.core.errors import ConfigError
from ferrum.core.json_record import JsonRecord
from ferrum.core.option_fields import check_options, option

_NUMBERS: Final = re.compile(r"([0-9]{1,4})(?::([0-9]{1,4}))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale(JsonRecord):
    """How many replicas, and what each may use. Raises ConfigError for an invalid value; `param` names the field."""

    replicas: str = option("1", "Replicas, as N or MIN:MAX; their number follows the choices that run or wait.")
    choices_per_replica: float = option(
        16.0, "Choices that run or wait, per replica, above which another one is started.", least=0.001
    )
    replica_cpus: float = option(1.0, "Processors that Ray reserves for a replica; set --threads to it.", least=0.0)
    replica_gpus: float = option(0.0, "GPUs that Ray reserves for a replica.", least=0.0)
    up_seconds: float = option(10.0, "Seconds for which more replicas must be needed before they start.", least=0.0)
    down_seconds: float = option(300.0, "Seconds for which fewer must be needed before some are drained.", least=0.0)
    start_seconds: float = option(1800.0, "Maximum time until the first replica serves, in seconds.", least=0.001)
    stall_seconds: float = option(
        STALL_SECONDS,
        "Seconds without a report after which a replica that has requests counts as dead.",
        least=1.0,
    )

    def __post_init__(self) -> None:
        check_options(self)
        if not 1 <= self.least <= self.most:
            raise ConfigError(f"must be N or MIN:MAX from 1 on, as in 1:4, not {self.replicas!r}", param="replicas")

    @property
    def least(self) -> int:
        """The minimum number of replicas; 0 for an invalid text."""
        found = _NUMBERS.fullmatch(self.replicas)
        return 0 if found is None else int(found[1])

    @property
    def most(self) -> int:
        """The maximum number of replicas."""
        found = _NUMBERS.fullmatch(self.replicas)
        return 0 if found is None else int(found[2] or found[1])

    def wanted(self, choices: float) -> int:
        """Return the number of replicas for a number of choices that run or wait, without the limits."""
        return math.ceil(choices / self.choices_per_replica)
