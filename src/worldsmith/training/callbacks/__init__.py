"""Callbacks of the training loop: each one hooks named points and owns a folder in the run folder."""
