"""What a family learns: each task joins data, model and objective into a loss."""
