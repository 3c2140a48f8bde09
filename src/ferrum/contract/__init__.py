"""The executor contract: the verbs, inputs, outputs and handles of every executor."""
