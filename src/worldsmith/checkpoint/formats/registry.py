"""The weight formats of the model families (`Family.formats`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worldsmith.checkpoint.formats.family_formats import FamilyFormats, Naming
from worldsmith.checkpoint.run.folders import best_of
from worldsmith.models.families import FamilyRegistry, find_released
from worldsmith.models.model_files import is_local

if TYPE_CHECKING:
    from worldsmith.checkpoint.sources.weight_source import WeightSource

FORMATS: FamilyRegistry[FamilyFormats] = FamilyRegistry(
    lambda family: family.load(family.formats)(family.name) if family.formats is not None else None
)


def formats_of(family: str) -> FamilyFormats:
    """The formats of a family; a family without any of its own has those that all have."""
    return FORMATS.find(family) or FamilyFormats(family)


def assembling(word: str) -> FamilyFormats:
    """The family that `convert --to` this word makes. Raises LookupError when there is none."""
    found = next((formats for formats in FORMATS.all() if formats.assembled_as == word), None)
    if found is None:
        raise LookupError(f"no family is made by convert --to {word}")
    return found


def find_naming(keys: Iterable[str], config: Mapping[str, Any], *, wanted: str = "") -> Naming | None:
    """The naming scheme of a folder's tensors beside its config.json; None for one that no family knows.

    The config of a native export states the family. Of several that can read another folder, `wanted` is the one.
    """
    keys = list(keys)
    model = config.get("model")
    stated = str(model.get("name", "")) if isinstance(model, dict) else ""
    known = [formats_of(stated)] if stated else FORMATS.all()
    known.sort(key=lambda formats: formats.family != wanted)
    return next((naming for formats in known if (naming := formats.find_naming(keys, config)) is not None), None)


def find_source(root: Path) -> Callable[[], WeightSource] | None:
    """What opens weights of a kind that one family alone knows; None for all other folders and files."""
    found = (formats.find_source(root) for formats in FORMATS.all())
    return next((opens for opens in found if opens is not None), None)


def describe_readable() -> str:
    """What folders of weights are read beside our own, for people."""
    return "; ".join(formats.reads for formats in FORMATS.all() if formats.reads)


def full_name(name: str) -> str:
    """The hub's name of a released model that is called by its short name, and the folder of a run's best checkpoint;
    any other name as it is."""
    name = best_of(name)
    if is_local(name):
        return name
    return find_released(name) or name
