"""Structured outputs: schemas and grammars, their checks, and the token masks that enforce them next to the engine."""
