"""`worldsmith check`: reads the data of a run, or a data set, as a run would.

Exit codes: 0 the run could start, 2 it could not, or a mistake of the user.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from worldsmith.actions.action import mistakes_of_the_user
from worldsmith.cli import run_source
from worldsmith.cli.action import show
from worldsmith.cli.parent_words import leave_parent_out
from worldsmith.config.errors import ConfigError, Place, UserError
from worldsmith.config.tree.draft import Loaded, finish
from worldsmith.config.tree.paths import format_path
from worldsmith.monitor.terminal_text import print_warning

SPLITS = ("train", "val")
SPEC_CAP = "policy.model_max_length"
"""What a spec calls the most tokens of a sample."""
HELP = (
    "Read the data of a run once, by the run's own code: what is kept and left out, with the reasons and counts of "
    "training; tokens, packs, sizes, duplicates, steps of a pass, free disk. Nothing is written."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    run_source.add_arguments(parser)
    parser.add_argument("--recipe", metavar="NAME", help="for a data set: the recipe whose limits hold")
    parser.add_argument(
        "--processes", type=count_from(1), metavar="N", help="processes that the run would have (default: 1)"
    )
    parser.add_argument(
        "--workers", type=count_from(0), metavar="N", help="processes that read (default: one for each CPU)"
    )
    parser.add_argument("--sample", type=count_from(1), metavar="N", help="look at N samples only, evenly chosen")
    parser.add_argument(
        "--headers", action="store_true", help="read headers only and decode nothing: fast, tells tokens and sizes"
    )
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")
    parser.epilog = (
        "In place of FILE_OR_RECIPE, a data set will do: a folder or a file of one of our layouts. Every value of the "
        "run is a flag too, and words after -- are overrides, as for `worldsmith train`."
    )


read_words = run_source.read_words


def count_from(least: int) -> Callable[[str], int]:
    """Reads a whole number that is at least so much."""

    def read(text: str) -> int:
        if not text.isdigit() or int(text) < least:
            raise argparse.ArgumentTypeError(f"expected a whole number from {least} on, found '{text}'")
        return int(text)

    return read


def run(args: argparse.Namespace) -> int:
    """Raises ConfigError or UserError for what the user can mend."""
    with mistakes_of_the_user():
        notes = leave_parent_out(args)
        loaded, recipe = load(args)
        for warning in (*notes, *loaded.warnings):
            print_warning(warning)
        from worldsmith.actions.datasets.check import CheckData

        config = CheckData.Config(
            run=loaded.tree, limits_of=recipe, decode=not args.headers, cap_fields=cap_fields(loaded)
        )
        for name in ("processes", "workers", "sample"):
            setattr(config, name, getattr(args, name))
        return show(config.build().run(), as_json=args.json)


def cap_fields(loaded: Loaded) -> dict[str, str]:
    """By split the field, elsewhere in the config or in the spec, that limits the tokens of a sample."""
    fields = {}
    for split in SPLITS:
        loader = getattr(loaded.tree, f"dataloader_{split}")
        if loader is None:
            continue
        path = (f"dataloader_{split}", loader.sample_cap_field)
        steps = [step for step in loaded.sources.get(path, []) if isinstance(step, tuple)]
        place = loaded.places.get(path)
        if steps:
            fields[split] = format_path(steps[0])
        elif loaded.report and place is not None and not is_of_the_run(place, path[0]):
            fields[split] = SPEC_CAP
    return fields


def is_of_the_run(place: Place, section: str) -> bool:
    """Whether a value is set by a flag or an override of the run, not by a spec and the words that follow it."""
    return place.file == "flag" or (place.file == "override" and (place.source or "").lstrip("+").startswith(section))


def load(args: argparse.Namespace) -> tuple[Loaded, str | None]:
    """The run, and the recipe that it is where the words name a data set instead."""
    found = find_dataset(args)
    if found is None:
        if args.recipe is not None:
            raise UserError("--recipe goes with a data set; a recipe alone is `worldsmith check NAME`")
        return run_source.load_run(args)[0], None
    dataset, recipe = found
    args.source = args.recipe or recipe
    draft, _, overrides = run_source.draft_run(args)
    if draft.tree is None:
        raise ConfigError(draft.problems)
    loader = draft.tree.dataloader_train
    if type(loader.dataset) is type(dataset):
        loader.dataset.path = dataset.path
    else:
        loader.dataset = dataset
    draft.tree.trainer.run_validation = False
    return finish(draft, overrides), args.source


def find_dataset(args: argparse.Namespace) -> tuple[Any, str] | None:
    """The settings of the data set that the words name, and the recipe for such ones; None if they name a run."""
    if args.source is None or run_source.names_source(args.source):
        return None
    if not os.path.exists(args.source) and not args.source.endswith(".tar"):  # shards may be a pattern or lie afar
        return None
    from worldsmith.tasks.registry import TASKS, task_of

    for family in TASKS.names():
        task = task_of(family)
        dataset = task.loader_class.dataset_at(args.source)
        if dataset is not None and (args.recipe or task.small_recipe):
            return dataset, task.small_recipe
    if Path(args.source).is_dir():
        raise UserError(
            f"{args.source} is no run folder and no data set of ours: it would have video_dataset_file.jsonl or "
            "*.tar, perhaps in train/, annotations.json, meta.json or messages.jsonl; `worldsmith dataset import` "
            "makes one of others"
        )
    return None
