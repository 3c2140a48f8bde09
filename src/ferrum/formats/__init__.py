"""Formats of outputs: how they are found, and how outputs are read to parts."""
