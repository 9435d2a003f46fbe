"""What a run folder says of the run that works in it."""
