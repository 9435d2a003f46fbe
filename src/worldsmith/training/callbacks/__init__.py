"""Callbacks of the training loop: each one implements hooks and has a folder in the run folder."""
