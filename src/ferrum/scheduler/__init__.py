"""Who computes what in the next step, and what its outcome means for the requests."""
