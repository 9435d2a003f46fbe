"""The typed run tree and the front doors that lead to it. Never imports torch."""

from worldsmith.config.configurable import Config, Configurable
from worldsmith.config.errors import ConfigError, Problem, UserError
from worldsmith.config.field_docs import field_docs
from worldsmith.config.registry import get_recipe, recipe, recipe_names
from worldsmith.config.value_types import ref

__all__ = [
    "Config",
    "ConfigError",
    "Configurable",
    "Problem",
    "UserError",
    "field_docs",
    "get_recipe",
    "recipe",
    "recipe_names",
    "ref",
]
