"""Backends: their interface, the numpy reference, the native CPU backend, recording and replay."""
