"""Training tasks: each combines data, model and objective into a loss."""
