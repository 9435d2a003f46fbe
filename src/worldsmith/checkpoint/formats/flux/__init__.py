from worldsmith.checkpoint.formats.flux.formats import FluxFormats

FAMILY = FluxFormats("flux")
"""`FluxFormats`: all that `checkpoint/` asks of this family."""
