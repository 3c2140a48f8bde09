"""Grammars of outputs, as text for llguidance: of JSON Schemas, GBNF, patterns, structural tags and tool calls."""
