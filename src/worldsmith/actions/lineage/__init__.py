"""Where results come from: parents, and the chain of records."""
