"""Where an engine runs: a thread or a process, and the messages between."""
