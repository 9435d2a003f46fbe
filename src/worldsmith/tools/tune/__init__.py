"""`worldsmith tune`: searches hyperparameters of a run."""

from worldsmith.actions.registry import Command

COMMANDS = {
    "tune": Command("search for settings of a run, by runs that try them", {"": "worldsmith.tools.tune.tune:Tune"}),
}
