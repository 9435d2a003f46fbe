"""Every family of the package declares parts that exist, and class names of earlier versions are found."""

from __future__ import annotations

import importlib
from pkgutil import resolve_name

import pytest

from worldsmith.checkpoint.formats.weight_formats import FORMATS
from worldsmith.config.declare.class_tags import class_of
from worldsmith.families.earlier_names import NEW_NAMES
from worldsmith.models.families import shipped_families
from worldsmith.tasks.registry import TASKS


@pytest.mark.parametrize("name", shipped_families())
def test_the_parts_of_a_family_exist(name: str) -> None:
    family = shipped_families()[name]
    assert TASKS.find(name) is resolve_name(family.task)
    formats = FORMATS.find(name)
    assert formats is not None
    assert formats.family == name
    assert family.recipes is not None
    importlib.import_module(family.recipes)


@pytest.mark.parametrize("earlier", NEW_NAMES)
def test_a_class_of_an_earlier_version_is_found_by_the_name_that_it_had(earlier: str) -> None:
    assert class_of(earlier) is class_of(NEW_NAMES[earlier])
