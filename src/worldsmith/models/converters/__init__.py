"""What changes a network after it is built: an ordered list of components, the same for every family."""

from worldsmith.models.converters.float8 import Float8
from worldsmith.models.converters.frozen_base import FrozenBase

__all__ = ["Float8", "FrozenBase"]
