from worldsmith.checkpoint.formats.wan.formats import WanFormats

FAMILY = WanFormats("wan")
"""`WanFormats`: all that `checkpoint/` asks of this family."""
