"""`ModelSpec`: which model family a run trains, and that family's own config."""

from __future__ import annotations

from worldsmith.config import Config, Configurable

FAMILIES = ("cosmos3",)


class ModelSpec(Config):
    """The `model` section of the run tree; the family's fields are read as `model.config.…`."""

    name: str
    """Model family. Known: cosmos3."""
    config: Configurable.Config
    """Config of the family's generator, e.g. `Cosmos3Generator.Config`."""

    def check(self) -> None:
        """Raises ValueError for a family that does not exist."""
        if self.name not in FAMILIES:
            raise ValueError(f"model.name is '{self.name}'; known model families: {', '.join(FAMILIES)}")
