from worldsmith.checkpoint.formats.vision_language.formats import VisionLanguageFormats

FAMILY = VisionLanguageFormats("vision_language")
