"""Initial weights of a new run, according to its config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from worldsmith.models.model import Model
from worldsmith.models.model_files import lasting_name

LOAD_PATH = "checkpoint.load_path"


@dataclass(frozen=True, slots=True)
class FirstWeights:
    """Path or Hub name of the initial weights of a run, and the config field that contains it."""

    field: str
    path: str
    unread: str = ""
    """Config field with initial weights that are ignored, because those of `field` are used; "": no such field."""

    @property
    def lasting(self) -> str:
        """Absolute path of the weights, or their Hub name."""
        return lasting_name(self.path)

    @property
    def describe(self) -> str:
        """Description of the weights for messages: config field and path, and the field `unread` if it is set."""
        unread = f"; {self.unread} is ignored" if self.unread else ""
        return f"{self.field} = {self.path}{unread}"


def first_weights(load_path: str | None, init: str, model: Model.Config) -> FirstWeights | None:
    """Returns the path of the initial weights of a run: load_path, else the weights that the model config names.

    Args:
        load_path: Value of `checkpoint.load_path`.
        init: Value of `checkpoint.init`; with "scratch" the weights that the model config names are ignored.
        model: Model config.

    Returns:
        Path and config field of the initial weights; None if the run starts from random weights.
    """
    own = model.own_weights()
    if load_path is not None:
        return FirstWeights(LOAD_PATH, load_path, unread="" if own is None else own[0])
    return None if own is None or init == "scratch" else FirstWeights(*own)


def start_in(tree: Mapping[str, Any], model: Model.Config) -> FirstWeights | None:
    """Returns path and config field of the initial weights of a run; None if they are random.

    Args:
        tree: Config of the run as plain data, for `checkpoint.load_path` and `checkpoint.init`.
        model: Model config.
    """
    section = tree["checkpoint"]
    return first_weights(section.get("load_path") or None, section.get("init", ""), model)
