"""Actions that show runs."""
