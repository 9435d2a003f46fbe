"""`--parent`: a run or a result in the place of the words that name its model."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from worldsmith.actions.action import Action
from worldsmith.config.declare.configurable import field_hints
from worldsmith.config.errors import UserError
from worldsmith.config.words.command_words import Words, read_settings
from worldsmith.config.words.flag_words import Flag
from worldsmith.dialects.cosmos_rl.train.model import NAME as SPEC_MODEL
from worldsmith.dialects.translation import PARENT_KEY

if TYPE_CHECKING:
    from worldsmith.dialects.cosmos_rl.spec_file import Spec

PARENT = "--parent"
LOAD_PATH = "checkpoint.load_path"
RATES = frozenset(("processor.media.fps", "processor.media.nframes"))
"""Of which a run has one."""
HELP = (
    "the run or result whose model is meant, by its folder, its name or the id of its record; :best, :last or :iter=N "
    "after it chooses a checkpoint. Fills model, what belongs to it, and how it was shown pictures"
)


def adopt_parent(name: str, words: Words, kinds: Sequence[type[Action]], file: str | None) -> None:
    """Adds the flags that a parent stands for. What flags, a settings file or a spec give stays as it is.

    Raises UserError for an action that reads no model, for a model beside it, and as `find_parent` does.
    """
    from worldsmith.actions.parents import as_words, find_parent, leaves

    kinds = [kind for kind in kinds if reads_model(kind)]
    if not kinds:
        raise UserError(f"{PARENT} stands for a model, and this command reads none; leave it out")
    fields = {field for kind in kinds for field in field_hints(kind.Config)}
    below = words.spec.data if words.spec is not None else {} if file is None else read_settings(file).data
    given = {flag.name.replace("-", "_") for flag in words.flags} | set(leaves(below))
    if words.loose or "model" in given:
        raise UserError(f"a model is named twice, also by {PARENT} {name}; leave one of them out")
    given |= RATES if given & RATES else set()
    filled = as_words(find_parent(name), fields)
    words.flags += [Flag(field, (text,)) for field, text in filled.items() if field not in given]


def adopt_parent_run(args: argparse.Namespace) -> None:
    """The weights of `args.parent`, if one is given, as the flag of what a run starts from.

    A run that goes on keeps its own start, whatever has become of the parent. Raises UserError when the words say that
    too, for adapters alone, and as `find_parent` does.
    """
    takes_model = take_parent_of_spec(args)
    if args.parent is None:
        return
    from worldsmith.actions.parents import start_of

    given = [flag.name for flag in args.flags] + [word.lstrip("+~").partition("=")[0] for word in args.overrides]
    if LOAD_PATH in given:
        raise UserError(
            f"{LOAD_PATH} and {PARENT} {args.parent} both say what the run starts from; leave one of them out"
        )
    start, model = start_of_run_that_goes_on(args)
    if start is None:
        start, model = start_of(args.parent)
    args.flags.append(Flag(LOAD_PATH, (start,)))
    args.parent = None
    if takes_model:
        args.spec_words[-1] = f"{SPEC_MODEL}={model}"


def take_parent_of_spec(args: argparse.Namespace) -> bool:
    """Takes `parent_job_id` of a training spec to `args.parent`; whether the spec gets its model from a parent.

    Raises UserError as `parent_of_spec`.
    """
    from worldsmith.dialects.cosmos_rl.train.draft import parent_of_spec

    spec = spec_of_run(args)
    if spec is None:
        return False
    file = spec.source
    args.parent, words = parent_of_spec(file, list(args.spec_words or ()), args.parent)
    if args.parent is None:
        return False
    args.spec, args.source = file, None
    args.spec_words = [*words, f"{SPEC_MODEL}={PARENT_KEY}"]
    return True


def leave_parent_out(args: argparse.Namespace) -> list[str]:
    """Takes `parent_job_id` out of a training spec that is checked without a start; returns the note on it, if any.

    The model of the spec is checked in place of that of the parent, unless the spec leaves it empty.
    """
    spec = spec_of_run(args)
    named = spec.outside.get(PARENT_KEY) if spec is not None else None
    if spec is None or not named:
        return []
    model = spec.get(SPEC_MODEL)
    args.spec, args.source = spec.source, None
    args.spec_words = [*(args.spec_words or ()), f"~{PARENT_KEY}", *([] if model else [f"{SPEC_MODEL}={PARENT_KEY}"])]
    checked = f"; what depends on the model is checked with {SPEC_MODEL} = {model}" if model else ""
    return [f"{PARENT_KEY} is not checked: the model of the start is that of {named}{checked}"]


def spec_of_run(args: argparse.Namespace) -> Spec | None:
    """The training spec that the words of a command name, as they change it; None if they name something else."""
    from worldsmith.dialects.cosmos_rl.spec_file import read_spec
    from worldsmith.dialects.cosmos_rl.train.draft import is_train_spec
    from worldsmith.dialects.cosmos_rl.train.form import FORM

    if args.spec is None and not (args.source and is_train_spec([args.source])):
        return None
    return read_spec(FORM, args.spec or args.source, list(args.spec_words or ()))


def start_of_run_that_goes_on(args: argparse.Namespace) -> tuple[str | None, str | None]:
    """What the run of these words started from and its model, if its folder has checkpoints; None for a new run."""
    from worldsmith.actions.parents import backbone_of, is_run, read_tree
    from worldsmith.checkpoint.run.folders import checkpoint_folders
    from worldsmith.cli.run_source import load_run
    from worldsmith.training.run_folder import run_path

    trial = argparse.Namespace(**{**vars(args), "flags": [*args.flags, Flag(LOAD_PATH, (args.parent,))]})
    folder = run_path(load_run(trial)[0].tree.job)
    if not is_run(folder) or not checkpoint_folders(folder / "checkpoints"):
        return None, None
    known = read_tree(folder / "config.yaml").get("checkpoint", {}).get("load_path")
    return (known, backbone_of(folder)) if isinstance(known, str) else (None, None)


def reads_model(kind: type[Action]) -> bool:
    return "model" in field_hints(kind.Config)
