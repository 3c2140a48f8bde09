"""Models as data: families, their specs, and the common decoder."""
