"""One rank of a run, carried out without memory."""
