"""Cosmos3 generator: a packed Mixture-of-Transformers over text and video latents."""
