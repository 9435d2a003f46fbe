"""Worldsmith: fine-tuning for world models, from one typed run description.

This is imported before anything else of the package, and imports nothing itself: Ctrl-C ends a command without a
traceback from then on.
"""

__version__ = "0.1.0"

FAMILIES = "worldsmith.families"
"""The package of the model families: a name, so that nothing is imported before it is used."""
DIALECTS = "worldsmith.dialects"
"""The package of the configs of other systems, likewise."""
TOOLS = "worldsmith.tools"
"""The package of the commands around a run, likewise."""
ROOT = "worldsmith.training.trainer.Trainer"
"""The component at the root of a tree, by the name that files write."""
