"""Converters: an ordered list of components that change a network after it is built, for every model family."""

from worldsmith.models.converters.float8 import Float8
from worldsmith.models.converters.frozen_base import FrozenBase

__all__ = ["Float8", "FrozenBase"]
