"""Recorded requests: their files, their replay and their explanation."""
