"""LTX-Video of Lightricks: text to video."""

from worldsmith.models.families import Family

FAMILY = Family(
    name="ltx_video",
    task="worldsmith.families.ltx_video.task:LTXVideoTask",
    formats="worldsmith.families.ltx_video.formats:LTXVideoFormats",
    recipes="worldsmith.families.ltx_video.recipes",
    short_names={"LTX-Video": "Lightricks/LTX-Video"},
)
