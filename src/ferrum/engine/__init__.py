"""From requests to streamed text: the engine's loop, where it lives, and the clients that talk to it."""
