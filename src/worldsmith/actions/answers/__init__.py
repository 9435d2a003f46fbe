"""Questions to models that answer."""
