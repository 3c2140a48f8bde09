"""Weights that know their format: one file a format."""
