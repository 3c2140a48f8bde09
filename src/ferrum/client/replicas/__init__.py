"""Several engines of equal bits behind one client: routing, and streams that survive an engine."""
