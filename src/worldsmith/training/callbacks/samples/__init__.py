"""Sample generation during training: the same prompts at regular intervals."""
