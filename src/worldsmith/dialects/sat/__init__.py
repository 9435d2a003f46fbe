"""SAT: the YAML stacks of CogVideo's own trainer."""

from __future__ import annotations

from worldsmith.config.dialects import RunDialect

RECIPE = "cogvideox_2b"
"""Recipe that provides the settings for which SAT config files have no key."""
DIALECT = RunDialect(
    name="sat",
    recipe=RECIPE,
    suffixes=(".yaml", ".yml"),
    claims="worldsmith.dialects.sat.recognize:is_sat_stack",
    read="worldsmith.dialects.sat.run:read_sat_draft",
)
