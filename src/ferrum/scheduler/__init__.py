"""Planning of steps, and what their results mean for the requests."""
