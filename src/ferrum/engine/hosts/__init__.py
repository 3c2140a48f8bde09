"""Hosts: an engine runs in a thread or in a process, and exchanges messages with its clients."""
