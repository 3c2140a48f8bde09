"""The executor contract: steps, lease, states and sequences of an executor, and what a model offers it."""
