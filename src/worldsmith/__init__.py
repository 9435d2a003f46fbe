"""Worldsmith: fine-tuning for world models, from one typed config.

`__all__` is the public Python API (docs/python.md). A name is imported when it is first used: this module has
no imports of its own, so that Ctrl-C ends a command without a traceback from then on, and mistakes in a config are
reported before torch is imported.
"""

TYPE_CHECKING = False  # type checkers know this name; importing `typing` for it would take longer than all of this
if TYPE_CHECKING:
    from worldsmith.actions.action import Result
    from worldsmith.api import evaluate, export, generate, load_config, plan
    from worldsmith.config.declare.configurable import Configurable
    from worldsmith.config.errors import ConfigError, UserError
    from worldsmith.config.recipes.registry import recipe
    from worldsmith.planning.plan import Plan
    from worldsmith.training.callbacks.base import Outcome
    from worldsmith.training.trainer import Trainer

__all__ = [
    "ConfigError",
    "Configurable",
    "Outcome",
    "Plan",
    "Result",
    "Trainer",
    "UserError",
    "evaluate",
    "export",
    "generate",
    "load_config",
    "plan",
    "recipe",
]
__version__ = "0.1.0"

FAMILIES = "worldsmith.families"
"""Package of the model families: a name, so that no module is imported before it is used."""
DIALECTS = "worldsmith.dialects"
"""Package of the config dialects of other systems, as a name for the same reason."""
TOOLS = "worldsmith.tools"
"""Package of the commands around a run, as a name for the same reason."""
DEMO = "worldsmith.demo"
"""Package of the synthetic datasets, as a name for the same reason."""
ROOT = "worldsmith.training.trainer.Trainer"
"""Component at the root of a config, by its name in files."""

_MODULES = {
    "ConfigError": "config.errors",
    "Configurable": "config.declare.configurable",
    "Outcome": "training.callbacks.base",
    "Plan": "planning.plan",
    "Result": "actions.action",
    "Trainer": "training.trainer",
    "UserError": "config.errors",
    "recipe": "config.recipes.registry",
}
"""Modules that define the public names that are not in `worldsmith.api`."""

if not TYPE_CHECKING:  # so that a type checker refuses names that do not exist

    def __getattr__(name):
        """Imports a public name when it is first used."""
        if name not in __all__:
            raise AttributeError(f"module 'worldsmith' has no attribute '{name}'")
        import importlib

        found = getattr(importlib.import_module(f"worldsmith.{_MODULES.get(name, 'api')}"), name)
        globals()[name] = found
        return found

    def __dir__():
        return sorted({*globals(), *__all__})
