"""CogVideoX of THUDM/Zhipu: text and image to video, 2B, 5B and 1.5."""

from worldsmith.models.families import Family

FAMILY = Family(
    name="cogvideox",
    task="worldsmith.families.cogvideox.task:CogVideoXTask",
    formats="worldsmith.families.cogvideox.formats:CogVideoXFormats",
    recipes="worldsmith.families.cogvideox.recipes",
    short_names={
        name: f"zai-org/{name}"
        for name in ("CogVideoX-2b", "CogVideoX-5b", "CogVideoX-5b-I2V", "CogVideoX1.5-5B", "CogVideoX1.5-5B-I2V")
    },
)
