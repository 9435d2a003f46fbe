"""`worldsmith tune`: searches hyperparameters of a run."""

from worldsmith.actions.registry import Command

COMMANDS = {
    "tune": Command("search for good settings of a run by trial runs", {"": "worldsmith.tools.tune.tune:Tune"}),
}
