"""Configs of other systems, read and written: a folder for each system. What they share stands beside them."""
