"""The typed config and the config formats that are read into it. Never imports torch."""

from worldsmith.config.declare.configurable import Config, Configurable
from worldsmith.config.declare.field_docs import field_docs
from worldsmith.config.declare.value_types import ref
from worldsmith.config.errors import ConfigError, Problem, UserError, WrongValueError, wrong
from worldsmith.config.recipes.registry import get_recipe, recipe, recipe_names
from worldsmith.config.toml.toml_schema import toml_keys

__all__ = [
    "Config",
    "ConfigError",
    "Configurable",
    "Problem",
    "UserError",
    "WrongValueError",
    "field_docs",
    "get_recipe",
    "recipe",
    "recipe_names",
    "ref",
    "toml_keys",
    "wrong",
]
