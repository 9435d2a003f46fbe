"""`worldsmith encode`: encodes the latents of a run before it starts."""

from worldsmith.actions.registry import Command

COMMANDS = {
    "encode": Command(
        "encode the clips of a run into its latent cache before training",
        {"": "worldsmith.tools.encode.encode:Encode"},
        about_run=True,
    ),
}
