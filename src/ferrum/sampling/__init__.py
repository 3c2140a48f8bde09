"""Sampling: rules over logits, draws, log-probabilities and verification of draft tokens."""
