"""Models as data: families, their specs, and the one decoder."""
