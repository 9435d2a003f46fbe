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
    """Path of initial weights (as accepted by `open_weights`), and the config field that contains the path."""

    field: str
    path: str
    unread: str = ""
    """Field that names other weights, which are not loaded."""

    @property
    def lasting(self) -> str:
        """The path in a form that does not depend on the working directory."""
        return lasting_name(self.path)

    @property
    def describe(self) -> str:
        """Description of the weights, for messages."""
        unread = f"; {self.unread} is ignored" if self.unread else ""
        return f"{self.field} = {self.path}{unread}"


def first_weights(load_path: str | None, init: str, model: Model.Config) -> FirstWeights | None:
    """Returns the initial weights of a run: `checkpoint.load_path`, else those of the model's config; None if random.

    Args:
        load_path: `checkpoint.load_path`.
        init: `checkpoint.init`; with "scratch" the weights of the model's config are ignored.
        model: Model config.
    """
    own = model.own_weights()
    if load_path is not None:
        return FirstWeights(LOAD_PATH, load_path, unread="" if own is None else own[0])
    return None if own is None or init == "scratch" else FirstWeights(*own)


def start_in(tree: Mapping[str, Any], model: Model.Config) -> FirstWeights | None:
    """Returns the initial weights of a run whose config `tree` is plain data, see `first_weights`."""
    section = tree["checkpoint"]
    return first_weights(section.get("load_path") or None, section.get("init", ""), model)
