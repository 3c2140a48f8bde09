"""The one way of a chat: from what a client asks to requests of the engine, and from deltas to its reply."""
