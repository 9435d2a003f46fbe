"""Wan 2.1 and 2.2: text and image to video."""

from worldsmith.models.families import Family

FAMILY = Family(
    name="wan",
    task="worldsmith.families.wan.task:WanTask",
    formats="worldsmith.families.wan.formats:WanFormats",
    recipes="worldsmith.families.wan.recipes",
    short_names={
        f"Wan{name}": f"Wan-AI/Wan{name}-Diffusers"
        for name in (
            *("2.1-T2V-1.3B", "2.1-T2V-14B", "2.1-I2V-14B-480P", "2.1-I2V-14B-720P"),
            *("2.2-TI2V-5B", "2.2-T2V-A14B", "2.2-I2V-A14B"),
        )
    },
)
