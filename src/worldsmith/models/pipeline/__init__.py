"""What families share whose network is a class of diffusers, and whose other parts are those of a pipeline of it."""
