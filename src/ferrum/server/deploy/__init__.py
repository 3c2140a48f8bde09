"""The server as an application of Ray Serve: one ingress, and replicas of the engine."""
