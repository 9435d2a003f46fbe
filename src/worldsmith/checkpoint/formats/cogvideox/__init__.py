from worldsmith.checkpoint.formats.cogvideox.formats import CogVideoXFormats

FAMILY = CogVideoXFormats("cogvideox")
"""`CogVideoXFormats`: all that `checkpoint/` asks of this family."""
