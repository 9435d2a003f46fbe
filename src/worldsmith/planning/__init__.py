"""What a run will need, found from its own code before it has memory, a GPU or a network."""
