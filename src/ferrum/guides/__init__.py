"""Guides of sequences: compiled grammars, and the token masks that enforce them next to the engine."""
