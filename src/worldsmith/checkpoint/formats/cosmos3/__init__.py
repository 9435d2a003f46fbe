from worldsmith.checkpoint.formats.cosmos3.formats import Cosmos3Formats

FAMILY = Cosmos3Formats("cosmos3")
