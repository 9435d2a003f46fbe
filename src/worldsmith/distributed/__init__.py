"""Processes, device meshes and sharding. A run of one process on a CPU uses none of it."""
