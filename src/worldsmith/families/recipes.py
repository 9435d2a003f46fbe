"""Importing this module registers the recipes of all families of the package."""

import importlib

from worldsmith.models.families import shipped_families

for family in shipped_families().values():
    if family.recipes is not None:
        importlib.import_module(family.recipes)
