"""Cosmos-RL and TAO: nested specs of training, evaluation, quantization and inference."""

from __future__ import annotations

from collections.abc import Sequence

from worldsmith.config.dialects import RunDialect
from worldsmith.config.tree.draft import Draft

RECIPE = "cosmos_rl"
"""It holds what a spec has no key for."""
SUFFIXES = (".toml", ".yaml", ".yml", ".json")


def claims(files: Sequence[str]) -> bool:
    """Whether it is one file, with the tables of a training spec; imports the classes of specs on first use."""
    if len(files) != 1 or not files[0].lower().endswith(SUFFIXES):
        return False
    from worldsmith.dialects.cosmos_rl.train.draft import is_train_spec

    return is_train_spec(files[0])


def read(files: Sequence[str], words: Sequence[str]) -> Draft:
    """The draft of a run; imports the reader on first use."""
    from worldsmith.dialects.cosmos_rl.train.draft import read_train_spec

    return read_train_spec(files[0], words)


DIALECT = RunDialect(name="cosmos_rl", recipe=RECIPE, claims=claims, read=read, is_spec=True)
