"""Worldsmith: fine-tuning for world models, from one typed run description."""

from worldsmith.config.recipes.registry import supply

__version__ = "0.1.0"

supply(recipes="worldsmith.recipes", root="worldsmith.training.trainer.Trainer")
