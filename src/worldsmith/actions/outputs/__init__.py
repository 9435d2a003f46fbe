"""Actions that make something with a model."""
