"""CogVideoX of THUDM/Zhipu: text and image to video, 2B, 5B and 1.5."""

from worldsmith.models.families import Family

FAMILY = Family(
    name="cogvideox",
    task="worldsmith.families.cogvideox.task:CogVideoXTask",
    formats="worldsmith.families.cogvideox.formats:CogVideoXFormats",
    recipes="worldsmith.families.cogvideox.recipes",
)
