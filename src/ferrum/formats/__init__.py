"""Formats of outputs: how they are found, parsed to parts, and turned into grammars."""
