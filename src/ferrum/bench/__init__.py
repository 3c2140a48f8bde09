"""Measurements of speed: workloads on any model or on random weights, beside the limit of this machine."""
