"""What happens around the training step: each callback hooks named points and owns a folder of the run."""
