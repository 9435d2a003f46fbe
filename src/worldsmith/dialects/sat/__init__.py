"""SAT: the YAML stacks of CogVideo's own trainer."""

from __future__ import annotations

from worldsmith.config.dialects import RunDialect

RECIPE = "cogvideox_2b"
"""Recipe with the settings that a stack has no key for."""
DIALECT = RunDialect(
    name="sat",
    recipe=RECIPE,
    suffixes=(".yaml", ".yml"),
    claims="worldsmith.dialects.sat.recognise:is_sat_stack",
    read="worldsmith.dialects.sat.run:read_sat_draft",
)
