"""Batches as a loader would give them, made from a run's own limits where its data are not at hand."""
