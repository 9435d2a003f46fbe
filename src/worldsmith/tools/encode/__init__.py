"""`worldsmith encode`: encodes the latents of a run before it starts."""

from worldsmith.actions.registry import Command

COMMANDS = {
    "encode": Command(
        "encode the clips of a run ahead of it, into its latent cache",
        {"": "worldsmith.tools.encode.encode:Encode"},
        about_run=True,
    ),
}
