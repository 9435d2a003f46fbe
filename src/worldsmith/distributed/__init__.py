"""Processes, meshes and sharding. One process on a CPU needs none of it and pays for none of it."""
