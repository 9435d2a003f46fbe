"""Cosmos-RL and TAO: nested specs of training, evaluation, quantization and inference."""

from __future__ import annotations

from worldsmith.config.dialects import RunDialect

RECIPE = "cosmos_rl"
"""Recipe that provides the settings for which a spec has no key."""
SUFFIXES = (".toml", ".yaml", ".yml", ".json")
DIALECT = RunDialect(
    name="cosmos_rl",
    recipe=RECIPE,
    suffixes=SUFFIXES,
    claims="worldsmith.dialects.cosmos_rl.train.read_spec:is_train_spec",
    read="worldsmith.dialects.cosmos_rl.train.read_spec:read_train_spec",
    is_spec=True,
)
