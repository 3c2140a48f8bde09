"""Adapters in a loaded model: their slots, copies and checks, the steps that apply them, and merging."""
