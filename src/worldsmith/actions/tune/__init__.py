"""Searching for settings: what is drawn, what is known, the runs that try it, and the page that shows it."""
