"""Configs of other systems, read and written: a folder for each system. `translation` has what they share."""
