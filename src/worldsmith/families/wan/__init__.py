"""Wan 2.1 and 2.2: text and image to video."""

from worldsmith.models.families import Family

FAMILY = Family(
    name="wan",
    task="worldsmith.families.wan.task:WanTask",
    formats="worldsmith.families.wan.formats:WanFormats",
    recipes="worldsmith.families.wan.recipes",
)
