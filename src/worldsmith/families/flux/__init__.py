"""FLUX.1 of Black Forest Labs: text to image."""

from worldsmith.models.families import Family

FAMILY = Family(
    name="flux",
    task="worldsmith.families.flux.task:FluxTask",
    formats="worldsmith.families.flux.formats:FluxFormats",
    recipes="worldsmith.families.flux.recipes",
    short_names={name: f"black-forest-labs/{name}" for name in ("FLUX.1-dev", "FLUX.1-schnell")},
)
