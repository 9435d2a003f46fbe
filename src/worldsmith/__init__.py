"""Worldsmith: fine-tuning for world models, from one typed run description."""

__version__ = "0.1.0"
