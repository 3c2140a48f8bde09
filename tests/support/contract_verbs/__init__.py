"""The executor contract, verb by verb, for any executor.

A module that imports these tests defines the fixture `make`, which builds a `Kit`. `contract_verbs.pages` is for
executors whose handles name pages.
"""

from contract_verbs.decodes import *  # noqa: F403
from contract_verbs.errors import *  # noqa: F403
from contract_verbs.kit import *  # noqa: F403
from contract_verbs.prompts import *  # noqa: F403
from contract_verbs.returns import *  # noqa: F403
from contract_verbs.sequences import *  # noqa: F403
from contract_verbs.steps import *  # noqa: F403
