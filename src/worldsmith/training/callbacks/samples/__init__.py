"""What a model gives for the same prompts, again and again while it is trained."""
