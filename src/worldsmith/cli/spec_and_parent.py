"""`--spec` and `--parent`: a spec of another system as settings, and a run or result as the source of the model."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence

from worldsmith.actions.action import Action
from worldsmith.config.command_line.command_flags import Words, read_settings_file
from worldsmith.config.command_line.typed_flags import TypedFlag
from worldsmith.config.declare.configurable import field_hints
from worldsmith.config.errors import UserError
from worldsmith.dialects.cosmos_rl.policy import KEY as POLICY
from worldsmith.dialects.cosmos_rl.policy import route, take_policy
from worldsmith.dialects.cosmos_rl.spec_file import Spec, read_spec
from worldsmith.dialects.cosmos_rl.spec_formats import COMMANDS, MODULES, form_of
from worldsmith.dialects.cosmos_rl.train.model import NAME as SPEC_MODEL
from worldsmith.dialects.translation import PARENT_KEY, ReportLine, SpecForm, SpecTranslation, require_translated

SPEC = "--spec"
SPEC_HELP = (
    "a spec of Cosmos-RL or TAO instead of a settings file; arguments such as evaluation.limit=10 and ~vision.fps "
    "change it, and flags override it"
)
MODEL_KEYS = {"evaluate": "model.model_name", "quantize": "model.model_path", "inference": "model_path"}
SAMPLING = {
    "fps": ("vision.fps", "fps"),
    "nframes": ("vision.nframes", "num_frames"),
    "total_pixels": ("vision.total_pixels", "total_pixels"),
}
_DOTTED = re.compile(r"\+?[A-Za-z_][\w.]*=.*|~[A-Za-z_][\w.]*", re.DOTALL)
PARENT = "--parent"
LOAD_PATH = "checkpoint.load_path"
RATES = frozenset(("processor.media.fps", "processor.media.nframes"))
"""Frame-sampling settings that exclude each other: a run sets at most one."""
PARENT_HELP = (
    "earlier run or result that supplies the model: its folder, its name or the id of its record; :best, :last or "
    ":iter=N after it selects a checkpoint. Sets the model, related settings and image preprocessing"
)


def read_spec_words(name: str, words: Words, *, settings: str) -> None:
    """Translates the spec of ``--spec`` into `words.spec`, and removes the dotted overrides from `words.loose`.

    A parent (an earlier run or export that supplies the model) replaces the model that the spec names. It is given by
    the spec or by ``--parent``.

    Args:
        name: Name of the command.
        words: Sorted arguments of the command; modified in place.
        settings: Name of the option for a settings file, which cannot be combined with a spec.

    Raises:
        UserError: For a command without specs, and for an argument that names a model in addition to a parent.
        ConfigError: For mistakes in the spec.
    """
    form_name = COMMANDS.get(name, name)
    if not reads_specs(name):
        known = ", ".join(command for command in (*MODULES, *COMMANDS) if command not in COMMANDS.values())
        raise UserError(f"worldsmith {name} does not read specs; these commands do: {known}")
    if settings in words.own:
        raise UserError(f"{SPEC} and {settings} both set the settings; omit one of them")
    form, file = form_of(form_name), words.own[SPEC]
    dotted = [word for word in words.loose if _DOTTED.fullmatch(word)]
    words.loose = [word for word in words.loose if word not in dotted]
    policy_route, (policy, dotted) = route(form_name, dotted), take_policy(dotted)
    spec = read_spec(form, file, dotted)
    key = MODEL_KEYS.get(form_name)
    parent = words.own.get(PARENT) or spec.outside.get(PARENT_KEY)
    if parent and key:
        for word in dotted:
            if key_of_word(form, word) == key:
                raise UserError(f"{word} and a parent, {parent}, both name the model; omit one of them")
        named = spec.get(key) if spec.is_stated(key) else None
        section = key[: key.rfind(".") + 1]
        spec = read_spec(form, file, [*dotted, f"{key}={PARENT_KEY}", f"{section}enable_lora=false"])
        words.own[PARENT] = str(parent)
    words.spec = require_translated(spec)
    if policy is not None:
        text = f"{policy_route.message}: `automl_policy` is used by train and tune only"
        words.spec.lines.append(ReportLine(POLICY, "unneeded", text, stated=True, warn=True))
    if parent and key:
        drop_parent_settings(words.spec)
        words.spec.lines = [line for line in words.spec.lines if line.key != key]
        instead = f", instead of {named}" if named else ""
        words.spec.report(
            key, "approximated" if named else "unneeded", f"the model is that of the parent, {parent}{instead}"
        )


def read_stack_words(words: Words, *, settings: str) -> None:
    """Translates a SAT stack of YAML files into settings of `generate`, stored in `words.spec`.

    The files are that of ``--spec`` and the positional arguments. Other arguments without a flag change values of the
    stack, such as ``args.seed=7``.

    Args:
        words: Sorted arguments of the command; modified in place.
        settings: Name of the option for a settings file, which cannot be combined with a stack.

    Raises:
        UserError: If the files are not a SAT stack.
        ConfigError: For mistakes in the stack.
    """
    from worldsmith.dialects.sat.recognize import is_change, is_sat_stack
    from worldsmith.dialects.sat.sampling import translate_sampling

    if settings in words.own:
        raise UserError(f"{SPEC} and {settings} both set the settings; omit one of them")
    files = [words.own[SPEC], *(word for word in words.loose if not is_change(word))]
    if not is_sat_stack(files):
        raise UserError(
            f"{SPEC} {' '.join(files)}: expected config files of CogVideo's SAT that are used together, such as "
            "model.yaml inference.yaml"
        )
    changes = [word for word in words.loose if is_change(word)]
    words.loose = []
    words.spec, _ = translate_sampling(files, changes)


def reads_specs(name: str) -> bool:
    """Returns whether the command `name` supports ``--spec``."""
    return COMMANDS.get(name, name) in MODULES


def adopt_parent(name: str, words: Words, kinds: Sequence[type[Action]], file: str | None) -> None:
    """Adds the flags that follow from ``--parent``, an earlier run or export whose model a command uses, to `words`.

    Values of flags, a settings file or a spec have priority.

    Args:
        name: Value of ``--parent``.
        words: Sorted arguments of the command; modified in place.
        kinds: Classes that may implement the command.
        file: Path of the settings file, if given.

    Raises:
        UserError: For an action that needs no model, for a model in addition to the parent, and if the parent refers to
            no model or to several models.
    """
    from worldsmith.actions.find_parent import as_words, find_parent, flatten_to_text

    kinds = [kind for kind in kinds if reads_model(kind)]
    if not kinds:
        raise UserError(f"{PARENT} selects a model, but this command needs none; omit it")
    fields = {field for kind in kinds for field in field_hints(kind.Config)}
    below = words.spec.data if words.spec is not None else {} if file is None else read_settings_file(file).data
    given = {flag.name.replace("-", "_") for flag in words.flags} | set(flatten_to_text(below))
    if words.loose or "model" in given:
        raise UserError(f"{PARENT} {name} and another argument both name the model; omit one of them")
    given |= RATES if given & RATES else set()
    filled = as_words(find_parent(name), fields)
    words.flags += [TypedFlag(field, (text,)) for field, text in filled.items() if field not in given]


def adopt_parent_run(args: argparse.Namespace) -> None:
    """Replaces the parent of a training run, if one is given, by the flag of the checkpoint to load, in `args`.

    The parent is an earlier run or export, given by ``--parent`` or by a spec. A run that is resumed keeps its initial
    weights, even if the parent has changed.

    Args:
        args: Parsed arguments of the command; modified in place.

    Raises:
        UserError: If the arguments also name a checkpoint to load or a model, if the parent refers to no model or to
            several models, and for adapters without base weights.
    """
    takes_model = take_parent_of_spec(args)
    if args.parent is None:
        return
    from worldsmith.actions.find_parent import start_of

    given = [flag.name for flag in args.flags] + [word.lstrip("+~").partition("=")[0] for word in args.overrides]
    if LOAD_PATH in given:
        raise UserError(f"{LOAD_PATH} and {PARENT} {args.parent} both set the initial weights; omit one of them")
    start, model = start_of_resumed_run(args)
    if start is None:
        start, model = start_of(args.parent)
    args.flags.append(TypedFlag(LOAD_PATH, (start,)))
    args.parent = None
    if takes_model:
        args.spec_words[-1] = f"{SPEC_MODEL}={model}"


def leave_parent_out(args: argparse.Namespace) -> list[str]:
    """Removes `parent_job_id`, the run or export that supplies the initial weights, from a training spec in `args`.

    The config can then be checked without these weights. Settings that depend on the model are checked with the model
    that the spec names, if any.

    Args:
        args: Parsed arguments of the command; modified in place.

    Returns:
        One warning that the parent is not checked; empty if the arguments name no spec with a parent.
    """
    spec = spec_of_run(args)
    named = spec.outside.get(PARENT_KEY) if spec is not None else None
    if spec is None or not named:
        return []
    model = spec.get(SPEC_MODEL)
    args.spec, args.source = spec.source, None
    args.spec_words = [*(args.spec_words or ()), f"~{PARENT_KEY}", *([] if model else [f"{SPEC_MODEL}={PARENT_KEY}"])]
    checked = f"; settings that depend on the model are checked with {SPEC_MODEL} = {model}" if model else ""
    return [f"{PARENT_KEY} is not checked: the initial model is that of {named}{checked}"]


def reads_model(kind: type[Action]) -> bool:
    """Returns whether the settings of an action have the field `model`."""
    return "model" in field_hints(kind.Config)


def take_parent_of_spec(args: argparse.Namespace) -> bool:
    """Moves `parent_job_id` of a training spec, if it is set, to `args.parent`.

    If the arguments name a spec and a parent, the parent replaces the model that the spec names.

    Args:
        args: Parsed arguments of the command; modified in place.

    Returns:
        Whether the arguments name a training spec and a parent, which the spec or ``--parent`` names.

    Raises:
        UserError: If the spec and ``--parent`` name different parents, or an override names a model in addition.
    """
    from worldsmith.dialects.cosmos_rl.train.read_spec import parent_of_spec

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


def spec_of_run(args: argparse.Namespace) -> Spec | None:
    """Returns the training spec that parsed arguments name, with its overrides; None if they name another source."""
    from worldsmith.dialects.cosmos_rl.train.key_rules import FORM
    from worldsmith.dialects.cosmos_rl.train.read_spec import is_train_spec

    if args.spec is None and not (args.source and is_train_spec([args.source])):
        return None
    return read_spec(FORM, args.spec or args.source, list(args.spec_words or ()))


def start_of_resumed_run(args: argparse.Namespace) -> tuple[str | None, str | None]:
    """Returns the initial weights and the backbone of the run that the parsed arguments would resume.

    Returns:
        Path of the checkpoint to load, and name or path of the backbone (None without one); (None, None) if the run has
        no checkpoints.
    """
    from worldsmith.actions.find_parent import backbone_of, is_run, read_tree
    from worldsmith.checkpoint.run.find_checkpoint import checkpoint_folders
    from worldsmith.cli.run_source import load_run
    from worldsmith.training.run_folder import run_path

    trial = argparse.Namespace(**{**vars(args), "flags": [*args.flags, TypedFlag(LOAD_PATH, (args.parent,))]})
    folder = run_path(load_run(trial)[0].tree.job)
    if not is_run(folder) or not checkpoint_folders(folder / "checkpoints"):
        return None, None
    known = read_tree(folder / "config.yaml").get("checkpoint", {}).get("load_path")
    return (known, backbone_of(folder)) if isinstance(known, str) else (None, None)


def key_of_word(form: SpecForm, word: str) -> str:
    """Returns the spec key that a dotted argument such as ``train.epoch=2`` sets; aliases of `form` are replaced."""
    key = word.removeprefix("+").partition("=")[0]
    key = key.removeprefix(f"{form.wrapper}.") if form.wrapper else key
    return form.aliases.get(key, key)


def drop_parent_settings(translation: SpecTranslation) -> None:
    """Removes the settings that the parent, an earlier run or export, supplies from a translated spec, in place.

    These are the model and, unless the spec states them, the sampling settings of videos: `fps`, `nframes` and
    `total_pixels`.
    """
    translation.data.pop("model", None)
    media = translation.data.get("processor", {}).get("media", {})
    for name, keys in SAMPLING.items():
        if not any(translation.is_stated(key) for key in keys):
            media.pop(name, None)
            for key in set(keys) & {line.key for line in translation.lines}:
                translation.lines = [line for line in translation.lines if line.key != key]
                translation.report(key, "unneeded", "as in the parent")
