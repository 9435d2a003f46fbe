"""Sample generation while training: the same prompts at regular intervals."""
