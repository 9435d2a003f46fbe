"""Which of the places that a run's config names its first weights come from."""

from __future__ import annotations

import pytest
from toy_family import ToyModel

from worldsmith.checkpoint.sources.first_weights import FirstWeights, first_weights


class Named(ToyModel.Config):
    """A model whose config names weights of its own."""

    def own_weights(self) -> tuple[str, str]:
        return "model.config.folder", "org/name"


OWN = FirstWeights("model.config.folder", "org/name")


@pytest.mark.parametrize(
    ("load_path", "init", "model", "expected"),
    [
        (None, "pretrained", Named(), OWN),
        (None, "scratch", Named(), None),
        ("run", "pretrained", Named(), FirstWeights("checkpoint.load_path", "run", unread="model.config.folder")),
        ("run", "scratch", Named(), FirstWeights("checkpoint.load_path", "run", unread="model.config.folder")),
        ("run", "pretrained", ToyModel.Config(), FirstWeights("checkpoint.load_path", "run")),
        (None, "pretrained", ToyModel.Config(), None),
    ],
)
def test_load_path_comes_first_then_what_the_model_names(load_path, init, model, expected) -> None:
    assert first_weights(load_path, init, model) == expected


def test_what_is_not_read_is_said() -> None:
    start = first_weights("run", "pretrained", Named())
    assert start is not None
    assert start.describe == "checkpoint.load_path = run; model.config.folder is ignored"
    assert OWN.describe == "model.config.folder = org/name"
