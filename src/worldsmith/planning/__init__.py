"""Plans a run before it starts: memory, communication and time, from a simulated step of its own code."""
