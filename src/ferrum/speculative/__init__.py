"""Guessing tokens so that several of a sequence can be verified in one step. No guess changes any answer."""
