"""`ModelSpec`: which model family a run trains, and that family's own config."""

from __future__ import annotations

from worldsmith.config import Config, wrong
from worldsmith.models.model import Model


class ModelSpec(Config):
    """The `model` section of a run's config: the model family and its config, whose fields are `model.config.…`."""

    name: str
    """Model family that `config` belongs to."""
    config: Model.Config
    """Config of the family's model."""

    def check(self) -> None:
        """Raises WrongValueError if `name` is not the family of `config`."""
        found = type(self.config)
        if self.name != found.family:
            raise wrong(
                self, "name", why=f"config is a {found.__qualname__}, which belongs to the family '{found.family}'"
            )
