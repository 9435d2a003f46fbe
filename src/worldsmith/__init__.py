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
"""Name of the package with the model families; a string, so that it is imported only when it is used."""
DIALECTS = "worldsmith.dialects"
"""Name of the package that reads the config files of other training systems."""
TOOLS = "worldsmith.tools"
"""Name of the package with the commands other than training, such as `worldsmith export`."""
DEMO = "worldsmith.demo"
"""Name of the package with the synthetic datasets."""
ROOT = "worldsmith.training.trainer.Trainer"
"""Import path of the class whose `Config` is the root of a run's config."""

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
"""Public name -> module that defines it, for the names that are not defined in `worldsmith.api`."""

if not TYPE_CHECKING:  # so that a type checker refuses names that do not exist

    def __getattr__(name):
        """Returns the public object `name`, imported on first access; raises AttributeError for an unknown name."""
        if name not in __all__:
            raise AttributeError(f"module 'worldsmith' has no attribute '{name}'")
        import importlib

        found = getattr(importlib.import_module(f"worldsmith.{_MODULES.get(name, 'api')}"), name)
        globals()[name] = found
        return found

    def __dir__():
        return sorted({*globals(), *__all__})
