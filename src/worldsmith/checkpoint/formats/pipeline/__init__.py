"""The formats of families whose network is a class of diffusers."""
