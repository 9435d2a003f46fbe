"""What a model gets wrong, from the results of an evaluation."""
