"""Backends: what a network may ask of them, the reference in numpy, recording and replay."""
