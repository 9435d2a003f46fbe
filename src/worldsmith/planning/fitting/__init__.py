"""Settings of a run that fit, and the best of them."""
