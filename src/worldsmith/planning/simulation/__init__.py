"""Simulates one rank of a run on fake tensors."""
