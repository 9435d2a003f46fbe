"""A run is rehearsed: what every rank does first, what it would save and read again, and what would be exported."""
