"""The executor contract: verbs, inputs, outputs and handles that any executor offers."""
