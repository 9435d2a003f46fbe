"""Cosmos3 generator: a packed Mixture-of-Transformers over text and video latents."""

from worldsmith.models.families import Family

FAMILY = Family(
    name="cosmos3",
    task="worldsmith.families.cosmos3.task:Cosmos3Task",
    formats="worldsmith.families.cosmos3.weights.formats:Cosmos3Formats",
    recipes="worldsmith.families.cosmos3.recipes",
    short_names={name: f"nvidia/{name}" for name in ("Cosmos3-Edge", "Cosmos3-Nano", "Cosmos3-Super")},
)
