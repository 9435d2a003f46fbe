"""Base classes of the families that wrap a diffusers pipeline: its network class, VAE and text encoder."""
