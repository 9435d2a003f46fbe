"""Vision-language models and text decoders of Hugging Face transformers."""

from worldsmith.models.families import Family

FAMILY = Family(
    name="vision_language",
    task="worldsmith.families.vision_language.task:VisionLanguageTask",
    formats="worldsmith.families.vision_language.weights.formats:VisionLanguageFormats",
    recipes="worldsmith.families.vision_language.recipes",
)
