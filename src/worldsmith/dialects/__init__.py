"""Reads and writes configs of other systems, one subpackage per system; `translation` has the shared code."""
